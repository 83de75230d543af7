"""Waits for values of RRefs that this worker owns, for a bounded time and in bounded threads.

Torch waits in a thread that serves requests, without an end. A peer can name an RRef that nobody creates,
so a few such requests would stop the worker. Torch has no way to ask whether a value is there.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
import time
from typing import Any

from torch.distributed import rpc

#: How many RRefs of one peer are waited for at a time, of usually 16 threads for requests.
MOST_OF_A_PEER = 8
#: Seconds that a request waits if as many are waited for, and that these may take.
_SHORT = 1.0
#: Seconds after which a thread without work ends.
_IDLE = 10.0


class Presence:
    """Tells whether the value of an RRef is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_peers: dict[str | None, _Waiting] = collections.defaultdict(_Waiting)

    def wait(self, rref: Any, peer: str | None) -> bool:
        """Wait until the value is there, or the RRef has failed.

        The time is that of RPCs. It is a second at most if the peer has this worker wait for many others,
        and nothing if none of these has got a value for a second.

        :returns: False if neither has happened in this time.
        """
        with self._lock:
            waiting = self._of_peers[peer]
        return waiting.wait(rref)


class _Waiting:
    """The threads that wait for RRefs of one peer; one whose RRef never gets a value never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._progress = 0.0

    def wait(self, rref: Any) -> bool:
        done = threading.Event()
        with self._lock:
            is_crowded = self._busy >= MOST_OF_A_PEER
            now = time.monotonic()
            if not is_crowded:
                self._progress = now
            elif now - self._progress > _SHORT:
                return False
            self._busy += 1  # also what is queued
            if self._busy > self._threads and self._threads < MOST_OF_A_PEER:
                self._threads += 1
                threading.Thread(
                    target=self._run, name="rpc-backends-guard-rref", daemon=True
                ).start()
        self._work.put((rref, done))
        return done.wait(_SHORT if is_crowded else rpc.get_rpc_timeout() or None)

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
