"""Whose key somebody connects with: what the transport in C++ asks, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rpc_backend_zeromq.refusals import Refusals

logger = logging.getLogger("rpc_backends.zeromq")

#: Seconds between two looks: strangers make no more of them, however many connect.
_PAUSE = 0.05

#: Has this worker learn of those who have joined meanwhile.
LookForNew = Callable[[bytes], object]


class AdmissionControl:
    """Knows the keys of the peers that were learned.

    A peer may be quicker: it calls this worker, and this worker has yet to learn of it. So a key that is
    not known is looked for in two ways: in a group whose size is known, by waiting until all are learned;
    in one that workers join, by having somebody look who is new. A worker is in the store before it
    connects, so a look answers all keys that were asked before it began: many strangers cost no more.

    It is apart from the transport in Python, which would otherwise hold itself.

    :param expected: how many peers will be learned; 0 where that is not known.
    :param grace_period: seconds that a key waits for them.
    """

    def __init__(
        self, expected: int, grace_period: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.look: LookForNew | None = None
        self.refused = Refusals()
        self._expected = expected
        self._grace_period = grace_period
        self._keys: dict[bytes, int] = {}
        self._learned: set[int] = set()
        self._waits = True
        self._clock = clock
        self._looked = float("-inf")  # when the last look began
        self._changed = threading.Condition()

    def learn(self, peer: int, *keys: bytes) -> None:
        """Take note of a peer, and of the keys with which it may connect."""
        with self._changed:
            self._forget(peer)
            self._learned.add(peer)
            self._keys.update(dict.fromkeys(keys, peer))
            self._changed.notify_all()

    def forget(self, peer: int) -> None:
        """Take note that a peer has left."""
        with self._changed:
            self._forget(peer)

    def stop_waiting(self) -> None:
        """Have no key waited for any more: no more peers will be learned."""
        with self._changed:
            self._waits = False
            self._changed.notify_all()

    def owner(self, key: bytes) -> int | None:
        """Return the peer that was learned with this key; None if there is none."""
        with self._changed:
            return self._keys.get(key)

    def whose(self, key: bytes, waited: float = 0.0) -> int | None:
        """Return the peer whose key it is; None if it is nobody's.

        :param waited: seconds since somebody has connected with it.
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
            logger.warning(
                "ZEROMQ worker %r cannot look for new workers", self.refused.owner, exc_info=True
            )

    def _settled(self, key: bytes) -> bool:
        return not self._waits or key in self._keys or len(self._learned) >= self._expected

    def _forget(self, peer: int) -> None:
        # It stays learned: nobody is to be waited for again.
        for key in [key for key, owner in self._keys.items() if owner == peer]:
            del self._keys[key]
