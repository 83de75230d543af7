"""Waiting for a store: interruptible, with progress in the log, never for ever by accident."""

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

#: A wait inside the store cannot be interrupted by Ctrl-C, so it is cut into slices of this length.
_SLICE = 1.0
#: After this many seconds, and after each doubling of it, the log says what is being waited for.
_FIRST_NEWS = 10.0
#: Seconds that a request may take where a worker can go on without the answer.
STORE_PATIENCE = 5.0


class StoreAccess:
    """Requests to a store that hold nobody up for long, and fail with one type of error.

    A store whose host is gone raises. One whose host is suspended says nothing, and a request that is
    inside it cannot be given up. So each request has a thread of its own, which is left alone if it takes
    too long; as long as it hangs, all further requests fail at once.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._late: threading.Thread | None = None

    def ask(self, request: Callable[[Any], T], seconds: float = STORE_PATIENCE) -> T:
        """Return what ``request`` returns, which is called with the store.

        :param seconds: how long it may take.
        :raises StoreError: it took longer, or failed; errors of this package pass as they are.
        """
        if self._late is not None and self._late.is_alive():
            raise StoreError("the group's store has not answered an earlier request yet.")
        outcomes: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def make() -> None:
            try:
                outcomes.put((request(self._store), None))
            except Exception as error:
                outcomes.put((None, error))

        # Under the name of the thread that asks, for whoever looks at threads.
        name = threading.current_thread().name
        thread = threading.Thread(target=make, name=name, daemon=True)
        try:
            thread.start()
            value, error = outcomes.get(timeout=seconds)
        except queue.Empty:
            self._late = thread
            raise StoreError(f"the group's store has not answered for {seconds:g} s.") from None
        except RuntimeError as no_thread:
            raise StoreError(f"the group's store cannot be asked: {no_thread}.") from no_thread
        thread.join()  # it has nothing more to do; nobody is to find it still ending
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
