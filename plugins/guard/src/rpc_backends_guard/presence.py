"""Waits for values of RRefs that this worker owns, for a bounded time and in bounded threads.

Torch waits in a thread that serves requests, without an end. A peer can name an RRef that no worker
creates, so a few such requests would stop the worker. Torch has no way to ask whether a value is there.

Half of the threads may wait for RRefs of one peer, and three quarters for those of all peers together.
Requests beyond that wait a second at most, so that peers that act together cannot hold all threads.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import threading
import time
from typing import Any

from torch.distributed import rpc

#: Seconds that a request waits if as many are waited for, and that these may take.
_SHORT = 1.0
#: Seconds after which a thread without work ends.
_IDLE = 10.0


class Presence:
    """Tells whether the value of an RRef is there.

    :param threads: how many requests this worker serves at a time.
    """

    def __init__(self, threads: int) -> None:
        self._lock = threading.Lock()
        self._of_peers: dict[str | None, _Waiting] = collections.defaultdict(
            functools.partial(_Waiting, max(1, threads // 2))
        )
        self._long = 0
        self._most_long = max(1, threads * 3 // 4)

    def wait(self, rref: Any, peer: str | None) -> bool:
        """Wait until the value is there, or the RRef has failed.

        The time is that of RPCs. It is a second at most if the peer has this worker wait for many others,
        or if requests of all peers wait for many, and nothing if none of the peer's has got a value for a
        second.

        :returns: False if neither has happened in this time.
        """
        with self._lock:
            waiting = self._of_peers[peer]
            may_be_long = self._long < self._most_long
            self._long += may_be_long
        try:
            return waiting.wait(rref, (rpc.get_rpc_timeout() or None) if may_be_long else _SHORT)
        finally:
            with self._lock:
                self._long -= may_be_long


class _Waiting:
    """The threads that wait for RRefs of one peer; one whose RRef never gets a value never ends.

    :param most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._progress = 0.0

    def wait(self, rref: Any, seconds: float | None) -> bool:
        done = threading.Event()
        with self._lock:
            is_crowded = self._busy >= self._most
            now = time.monotonic()
            if not is_crowded:
                self._progress = now
            elif now - self._progress > _SHORT:
                return False
            if self._busy >= self._threads and self._threads < self._most:
                threading.Thread(
                    target=self._run, name="rpc-backends-guard-rref", daemon=True
                ).start()
                self._threads += 1
            self._busy += 1  # also what is queued
        self._work.put((rref, done))
        return done.wait(_SHORT if is_crowded else seconds)

    def _run(self) -> None:
        while True:
            try:
                rref, done = self._work.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._work.empty() and self._busy < self._threads:
                        self._threads -= 1
                        return
                continue
            with contextlib.suppress(Exception):  # an RRef that has failed raises at its user, too
                rref.local_value()
            with self._lock:
                self._busy -= 1
                self._progress = time.monotonic()
            done.set()
