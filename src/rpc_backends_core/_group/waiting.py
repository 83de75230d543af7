"""Waiting for a key of a store: interruptible, with progress in the log, never for ever by accident."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

logger = logging.getLogger("rpc_backends")

#: A wait inside the store cannot be interrupted by Ctrl-C, so it is cut into slices of this length.
_SLICE = 1.0
#: After this many seconds, and after each doubling of it, the log says what is being waited for.
_FIRST_NEWS = 10.0


def wait_for(
    store: Any,
    key: str,
    timeout: float,
    what: Callable[[], str],
    *,
    reader: str = "",
    meanwhile: Callable[[], None] | None = None,
    first_news: float | None = None,
) -> bytes | None:
    """Return the value of ``key`` once it is there; None when ``timeout`` seconds have passed.

    :param what: says what is being waited for, for the log; called only if it takes long.
    :param reader: who waits, for the log.
    :param first_news: seconds after which the log says so for the first time (10); infinite where it is
        usual to wait.
    :param meanwhile: called after a second or two of waiting, and after each doubling of that.
    """
    start = time.monotonic()
    news, look = _FIRST_NEWS if first_news is None else first_news, _SLICE
    while True:
        waited = time.monotonic() - start
        left = timeout - waited
        if left <= 0:
            return None
        if waited >= news:
            logger.warning("%s has waited %.0f s for %s", reader or "RPC", waited, what())
            news *= 2
        if _wait(store, key, min(left, _SLICE)):
            value: bytes = store.get(key)
            return value
        if meanwhile is not None and waited >= look:
            meanwhile()
            look *= 2


def _wait(store: Any, key: str, seconds: float) -> bool:
    before = time.monotonic()
    try:
        store.wait([key], timedelta(seconds=max(seconds, 0.001)))
    except RuntimeError:
        # A store says "timed out" and "connection lost" by the same type; the time tells them apart.
        if time.monotonic() - before < 0.5 * seconds and not store.check([key]):
            raise
        return False
    return True
