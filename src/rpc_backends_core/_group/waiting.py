"""Waiting for a store: interruptible, with progress in the log, never for ever by accident."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from rpc_backends_core._errors import RpcBackendsError, StoreError
from rpc_backends_core._time_limit import HOST_MAY_HANG, LateError, NoThreadError, within

T = TypeVar("T")

logger = logging.getLogger("rpc_backends")

#: A wait inside the store cannot be interrupted by Ctrl-C, so it is cut into slices of this length.
_SLICE = 1.0
#: After this many seconds, and after each doubling of it, the log says what is being waited for.
_FIRST_NEWS = 10.0
#: Seconds that a request may take where a worker can go on without the answer.
STORE_PATIENCE = 5.0


class StoreAccess:
    """Requests to a store that have a time limit, and fail with one type of error.

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
        try:
            return self.ask_plainly(request, seconds)
        except RpcBackendsError:
            raise
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            raise StoreError(
                f"{located(self._store)} cannot be used: {type(error).__name__}: {first_line}"
            ) from error

    def ask_plainly(self, request: Callable[[Any], T], seconds: float) -> T:
        """Do the same; what ``request`` raises passes as it is.

        :raises StoreError: it took longer, or an earlier request still does.
        """
        if self._late is not None and self._late.is_alive():
            raise StoreError(
                f"{located(self._store)} has not answered an earlier request yet. {HOST_MAY_HANG}"
            )
        try:
            return within(seconds, lambda: request(self._store))
        except LateError as late:
            self._late = late.thread
            raise StoreError(
                f"{located(self._store)} has not answered for {seconds:g} s. {HOST_MAY_HANG}"
            ) from None
        except NoThreadError as error:
            raise StoreError(f"{located(self._store)} cannot be asked: {error}.") from error


class BoundedStore:
    """A store like the one it is made of, each of whose requests has a time limit.

    :param seconds: how long a request may take, beside what it is told to wait.
    """

    def __init__(self, store: Any, seconds: float) -> None:
        self._access = StoreAccess(store)
        self._seconds = seconds

    def set(self, key: str, value: str) -> None:
        self._ask(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        return self._ask(lambda store: bytes(store.get(key)))

    def add(self, key: str, amount: int) -> int:
        return self._ask(lambda store: int(store.add(key, amount)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._ask(lambda store: bytes(store.compare_set(key, expected, desired)))

    def check(self, keys: list[str]) -> bool:
        return self._ask(lambda store: bool(store.check(keys)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._ask(lambda store: list(store.multi_get(keys)))

    def has_extended_api(self) -> bool:
        return self._ask(lambda store: bool(store.has_extended_api()))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._ask(lambda store: store.wait(keys, timeout), timeout.total_seconds())

    def _ask(self, request: Callable[[Any], T], more: float = 0) -> T:
        # Types of errors pass: who joins a group begins anew after some of them.
        return self._access.ask_plainly(request, self._seconds + more)


def located(store: Any) -> str:
    """Return "the group's store", and where it is if it is a TCP store."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return f"the group's store at {host}:{port}" if host and port else "the group's store"


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
    except StoreError:
        raise  # it does not answer
    except RuntimeError:
        # A store says "timed out" and "connection lost" by the same type; the time tells them apart.
        if time.monotonic() - before < 0.5 * seconds and not store.check([key]):
            raise
        return False
    return True
