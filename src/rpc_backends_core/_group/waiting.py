"""Waiting for a store: interruptible, logged, and with a time limit."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from rpc_backends_core._errors import RpcBackendsError, StoreError

T = TypeVar("T")

logger = logging.getLogger("rpc_backends")

#: Ctrl-C cannot interrupt a wait inside the store, so each wait is split into slices of this many
#: seconds.
_SLICE = 1.0
#: After this many seconds, and after each doubling of it, the wait is logged.
_FIRST_NEWS = 10.0
#: Seconds that a request may take if the worker can continue without its answer.
STORE_PATIENCE = 5.0


class StoreAccess:
    """Store requests that have a time limit and always fail with :class:`StoreError`.

    If the store's host is gone, a request raises. If the host is suspended, the request hangs and
    cannot be cancelled. So each request runs in a thread of its own, which is abandoned if it takes
    too long; while that thread hangs, further requests fail at once.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._late: threading.Thread | None = None

    def ask(self, request: Callable[[Any], T], seconds: float = STORE_PATIENCE) -> T:
        """Call ``request`` with the store and return its result.

        :param seconds: the time limit.
        :raises StoreError: the request failed or took too long. Errors of this package pass through
            unchanged.
        """
        if self._late is not None and self._late.is_alive():
            raise StoreError("the group's store has not answered an earlier request yet.")
        outcomes: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def make() -> None:
            try:
                outcomes.put((request(self._store), None))
            except Exception as error:
                outcomes.put((None, error))

        # Named after the calling thread, for anyone who inspects threads.
        name = threading.current_thread().name
        thread = threading.Thread(target=make, name=name, daemon=True)
        try:
            thread.start()
            value, error = outcomes.get(timeout=seconds)
        except queue.Empty:
            self._late = thread
            raise StoreError(f"the group's store has not answered for {seconds:g} s.") from None
        except RuntimeError as no_thread:
            raise StoreError(
                f"no thread could be started to ask the group's store: {no_thread}."
            ) from no_thread
        thread.join()  # it is done; leave no thread that is still ending
        if isinstance(error, RpcBackendsError):
            raise error
        if error is not None:
            first_line = str(error).partition("\n")[0]
            raise StoreError(
                f"the group's store cannot be used: {type(error).__name__}: {first_line}"
            ) from error
        return value  # type: ignore[return-value]


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
    """Wait for ``key`` and return its value; None after ``timeout`` seconds.

    :param what: returns what the caller waits for, for the log; called only if the wait is long.
    :param reader: the name of the waiting worker, for the log.
    :param first_news: seconds until the first log line (10); infinite if long waits are normal.
    :param meanwhile: called after one or two seconds, and again each time the wait has doubled.
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
        # Stores raise the same type for a timeout and a lost connection; the elapsed time tells
        # which.
        if time.monotonic() - before < 0.5 * seconds and not store.check([key]):
            raise
        return False
    return True
