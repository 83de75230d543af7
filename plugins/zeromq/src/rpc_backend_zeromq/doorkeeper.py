"""Whose key somebody connects with: what the transport in C++ asks, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rpc_backend_zeromq.refusals import Refusals

logger = logging.getLogger("rpc_backends.zeromq")

#: Has this worker learn of those who have joined meanwhile.
LookForNew = Callable[[bytes], object]


class Doorkeeper:
    """Knows the keys of the peers that were learned.

    A peer may be quicker: it calls this worker, and this worker has yet to learn of it. So a key that is
    not known is looked for in two ways: in a group whose size is known, by waiting until all are learned;
    in one that workers join, by having somebody look who is new.

    It is apart from the transport in Python, which would otherwise hold itself.

    :param expected: how many peers will be learned; 0 where that is not known.
    :param patience: seconds that a key waits for them.
    """

    def __init__(self, expected: int, patience: float) -> None:
        self.look: LookForNew | None = None
        self.refused = Refusals()
        self._expected = expected
        self._patience = patience
        self._keys: dict[bytes, int] = {}
        self._learned: set[int] = set()
        self._waits = True
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

    def whose(self, key: bytes) -> int | None:
        """Return the peer whose key it is; None if it is nobody's."""
        look = self.look
        if look is not None and key not in self._keys:
            try:
                look(key)
            except Exception:
                logger.warning(
                    "ZEROMQ worker %r cannot look for new workers",
                    self.refused.owner,
                    exc_info=True,
                )
        with self._changed:
            self._changed.wait_for(lambda: self._settled(key), self._patience)
            return self._keys.get(key)

    def _settled(self, key: bytes) -> bool:
        return not self._waits or key in self._keys or len(self._learned) >= self._expected

    def _forget(self, peer: int) -> None:
        # It stays learned: nobody is to be waited for again.
        for key in [key for key, owner in self._keys.items() if owner == peer]:
            del self._keys[key]
