"""Finds the worker that a key belongs to, and logs refusals. C++ asks on its callback thread."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable

from rpc_backends_agents.engine.variables import logger_of

#: Seconds between two lookups. Unknown processes cannot cause more, however many connect.
_PAUSE = 0.05
#: Seconds after a warning during which further refusals are only counted.
_QUIET = 10.0
#: Characters shown of a reason, because the refused process supplies part of it.
_LENGTH = 500

#: Makes this worker learn the peers that have joined since the last lookup.
LookForNew = Callable[[bytes], object]


class Refusals:
    """Logs a warning for a refused connection, then only counts refusals for some seconds.

    So refused processes cannot fill the log.

    :param backend: the name of the worker's backend.
    :ivar owner: the worker's name.
    :ivar count: the number of refused connections.
    """

    def __init__(
        self, backend: str, owner: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.backend = backend
        self.owner = owner
        self.count = 0
        self._clock = clock
        self._quiet_until = float("-inf")
        self._unsaid = 0
        self._lock = threading.Lock()

    def __call__(self, why: str) -> None:
        """Record a refused connection and the reason."""
        with self._lock:
            self.count += 1
            if self._clock() < self._quiet_until:
                self._unsaid += 1
                return
            self._quiet_until = self._clock() + _QUIET
            unsaid, self._unsaid = self._unsaid, 0
        # Escaped, so that a refused process cannot forge log lines. str.encode() would import the codec,
        # which fails if no file can be opened: then connections are refused, too.
        shown = codecs.unicode_escape_encode(why[:_LENGTH])[0].decode("ascii")
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        logger_of(self.backend).warning(
            "%s worker %r refused a connection: %s%s", self.backend, self.owner, shown, more
        )


class AdmissionControl:
    """Maps the keys of known peers to worker ids, and decides whom to let in.

    A peer may connect before this worker has learned its key. In a group of known size, an unknown key
    therefore waits until all peers are learned. In a dynamic group, ``look`` searches the store for new
    workers. A worker writes to the store before it connects, so one lookup answers every key that was
    asked for before the lookup began: many unknown processes cost no more than one.

    This class is separate from the Python transport so that the transport does not reference itself.

    :param backend: the name of the worker's backend.
    :param expected: the number of peers that will be learned; 0 if unknown.
    :param grace_period: seconds that an unknown key waits for these peers.
    """

    def __init__(
        self,
        backend: str,
        expected: int,
        grace_period: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.look: LookForNew | None = None
        self.refused = Refusals(backend)
        self._expected = expected
        self._grace_period = grace_period
        self._keys: dict[bytes, int] = {}
        # The keys of each peer that was ever learned; none for one that has left.
        self._keys_of: dict[int, tuple[bytes, ...]] = {}
        self._waits = True
        self._clock = clock
        self._looked = float("-inf")  # when the last look began
        self._changed = threading.Condition()

    def learn(self, peer: int, *keys: bytes) -> None:
        """Add a peer and the keys with which it may connect."""
        with self._changed:
            self._forget(peer)
            self._keys_of[peer] = keys
            self._keys.update(dict.fromkeys(keys, peer))
            self._changed.notify_all()

    def forget(self, peer: int) -> None:
        """Remove the keys of a peer that has left."""
        with self._changed:
            self._forget(peer)

    def stop_waiting(self) -> None:
        """Refuse unknown keys at once from now on, because no more peers will be learned."""
        with self._changed:
            self._waits = False
            self._changed.notify_all()

    def owner(self, key: bytes) -> int | None:
        """Return the known peer with this key; None if there is none."""
        with self._changed:
            return self._keys.get(key)

    def whose(self, key: bytes, waited: float = 0.0) -> int | None:
        """Return the peer that has this key, after waiting or looking for it; None if no peer has.

        :param waited: seconds since a process connected with this key.
        """
        asked = self._clock() - waited
        if self.look is not None and self.owner(key) is None and self._looked <= asked:
            self._look(key)
        with self._changed:
            left = max(self._grace_period - waited, 0)
            self._changed.wait_for(lambda: self._settled(key), left)
            return self._keys.get(key)

    def _look(self, key: bytes) -> None:
        with self._changed:
            pause = self._looked + _PAUSE - self._clock()
            self._changed.wait_for(lambda: self.look is None or key in self._keys, max(pause, 0))
            look = self.look
            if look is None or key in self._keys:
                return
        self._looked = self._clock()
        try:
            look(key)
        except Exception:
            logger_of(self.refused.backend).warning(
                "%s worker %r cannot look for new workers",
                self.refused.backend,
                self.refused.owner,
                exc_info=True,
            )

    def _settled(self, key: bytes) -> bool:
        return not self._waits or key in self._keys or len(self._keys_of) >= self._expected

    def _forget(self, peer: int) -> None:
        for key in self._keys_of.get(peer, ()):
            if self._keys.get(key) == peer:
                del self._keys[key]
        if peer in self._keys_of:
            self._keys_of[
                peer
            ] = ()  # it still counts as learned, so that no key waits for it again
