"""Waiting for a store: interruptible, logged, and with a time limit."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from torch.distributed import DistNetworkError

from rpc_backends_core._errors import RpcBackendsError, StoreError
from rpc_backends_core._group.connections import address_of, is_closed
from rpc_backends_core._time_limit import HOST_MAY_HANG, LateError, within

T = TypeVar("T")

logger = logging.getLogger("rpc_backends")

#: Seconds between two looks at what else a waiting worker has to do: to log, to call ``meanwhile``.
_SLICE = 1.0
_LONGEST_LOOK = 10.0
#: The pause between two checks for a key grows with the square root of the time waited: 3 ms after 10 ms,
#: 30 ms after 1 s, at most half a second. A short wait ends late by a few milliseconds, and a long one
#: makes few requests. The pauses are longer if more than `_FEW` workers wait, who share one store.
_SHORTEST_PAUSE, _PAUSE_AFTER_A_SECOND, _LONGEST_PAUSE = 0.0005, 0.03, 0.5
_FEW = 64
#: After this many seconds, and after each doubling of it, the wait is logged.
_FIRST_NEWS = 10.0
#: Seconds that a request may take if the worker can continue without its answer.
STORE_TIMEOUT = 5.0


class StoreAccess:
    """Store requests that have a time limit and always fail with :class:`StoreError`.

    If the store's host is gone, a request raises. If the host is suspended, the request hangs and
    cannot be cancelled. So each request runs in a thread of its own, which is abandoned if it takes
    too long; while that thread hangs, further requests fail at once.

    :param host: the worker that hosts the store unless the launcher does, for errors.
    """

    def __init__(self, store: Any, host: str = "rank 0") -> None:
        self._store = store
        self._host = host
        self._late: threading.Thread | None = None
        self._lost = ""

    def ask(self, request: Callable[[Any], T], seconds: float = STORE_TIMEOUT) -> T:
        """Call ``request`` with the store and return its result.

        :param seconds: the time limit.
        :raises StoreError: the request failed or took too long. Errors of this package pass through
            unchanged.
        """
        if not self._lost:
            try:
                return self.ask_plainly(request, seconds)
            except RpcBackendsError:
                raise
            except Exception as error:
                if not isinstance(error, DistNetworkError):
                    raise StoreError(_failure(self._store, error)) from error
                self._lost = lost_store(self._store, error, self._host)
        # The cause would add only torch's C++ backtrace. A lost connection stays lost, and torch writes
        # that backtrace to stderr for each further request.
        raise StoreError(self._lost)

    def ask_plainly(
        self,
        request: Callable[[Any], T],
        seconds: float,
        cancel: Callable[[], object] | None = None,
    ) -> T:
        """Do what :meth:`ask` does, but raise the errors of ``request`` unchanged.

        :param cancel: ends ``request`` early, if this thread is interrupted.
        :raises StoreError: the request took longer, or an earlier one still hangs.
        """
        if self._late is not None and self._late.is_alive():
            raise StoreError(
                f"{located(self._store)} has not answered an earlier request yet. {HOST_MAY_HANG}"
            )
        try:
            return within(seconds, lambda: request(_open(self._store)), cancel)
        except LateError as late:
            self._late = late.thread
            raise StoreError(
                f"{located(self._store)} has not answered for {seconds:g} s. {HOST_MAY_HANG}"
            ) from None


class BoundedStore:
    """A store whose requests have a time limit.

    :param seconds: how long a request may take, in addition to the timeout in the request itself.
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

    def poll(self, key: str, seconds: float, waited: float, pause: float) -> bool:
        # one request, so that the checks share a thread
        cancelled = threading.Event()
        return self._ask(
            lambda store: _poll(store, key, seconds, waited, pause, cancelled.wait),
            seconds,
            cancelled.set,
        )

    def _ask(
        self,
        request: Callable[[Any], T],
        more: float = 0,
        cancel: Callable[[], object] | None = None,
    ) -> T:
        # Errors keep their types: a worker that joins a group tries again after some of them.
        return self._access.ask_plainly(request, self._seconds + more, cancel)


def _open(store: Any) -> Any:
    """Return the store.

    :raises DistNetworkError: its host has closed the connection; torch would write a C++ backtrace.
    """
    if is_closed(store):
        raise DistNetworkError("its host has closed the connection")
    return store


def located(store: Any) -> str:
    """Return "the group's store", and where it is if it is a TCP store."""
    address = address_of(store)
    return "the group's store" + (f" at {address[0]}:{address[1]}" if address else "")


def lost_store(store: Any, error: Exception, host: str = "rank 0") -> str:
    """Say that a store is lost.

    :param error: what a request to the store has raised.
    :param host: the worker that hosts the store unless the launcher does.
    """
    return (
        f"{_failure(store, error)}. The process that hosts it ({host}, or the launcher) has probably "
        "ended: see its output for the reason."
    )


def _failure(store: Any, error: Exception) -> str:
    first_line = str(error).partition("\n")[0].rstrip(".")
    return f"{located(store)} cannot be used: {type(error).__name__}: {first_line}"


def wait_for(
    store: Any,
    key: str,
    timeout: float,
    what: Callable[[], str],
    *,
    reader: str = "",
    waiting: int = 1,
    meanwhile: Callable[[], None] | None = None,
    first_news: float | None = None,
) -> bytes | None:
    """Wait for ``key`` and return its value; None after ``timeout`` seconds.

    :param what: returns what the caller waits for, for the log; called only if the wait is long.
    :param reader: the name of the waiting worker, for the log.
    :param waiting: how many workers may wait at the same time.
    :param first_news: seconds until the first log line (10); infinite if long waits are normal.
    :param meanwhile: called after one or two seconds, again each time the wait has doubled, and at
        least about every ten seconds.
    """
    start = time.monotonic()
    news, look = _FIRST_NEWS if first_news is None else first_news, _SLICE
    pause = _PAUSE_AFTER_A_SECOND * max(1, waiting / _FEW)
    poll = store.poll if isinstance(store, BoundedStore) else partial(_poll, store)
    while True:
        waited = time.monotonic() - start
        left = timeout - waited
        if left <= 0:
            return None
        if waited >= news:
            logger.warning("%s has waited %.0f s for %s", reader or "RPC", waited, what())
            news *= 2
        if poll(key, min(left, _SLICE), waited, pause):
            value: bytes = store.get(key)
            return value
        if meanwhile is not None and waited >= look:
            meanwhile()
            look = min(2 * look, waited + _LONGEST_LOOK)


def _poll(
    store: Any,
    key: str,
    seconds: float,
    waited: float,
    pause: float,
    sleep: Callable[[float], bool | None] = time.sleep,
) -> bool:
    """Check for ``key`` again and again, for so many seconds; return whether it has a value.

    :param waited: for how many seconds the caller has waited before.
    :param pause: the pause between two checks after one second of waiting.
    :param sleep: called with each pause; if it returns true, there is no further check.
    """
    # Not store.wait(): each wait that times out makes torch write two lines to stderr, and Ctrl-C does
    # not interrupt it.
    begin = time.monotonic()
    while not _open(store).check([key]):
        passed = time.monotonic() - begin
        if passed >= seconds:
            return False
        grown = max(pause * math.sqrt(waited + passed), _SHORTEST_PAUSE)
        if sleep(min(grown, _LONGEST_PAUSE, seconds - passed)):
            return False
    return True
