"""Telling of connections that were refused, without letting whoever knocks fill the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("rpc_backends.zeromq")

#: Seconds for which nothing more is said after a line.
_PAUSE = 10.0
#: Characters of a line that are shown; part of it comes from whoever was refused.
_LENGTH = 500


class Refusals:
    """Writes a warning for a refused connection, and then none for a while, but counts.

    :ivar owner: the worker's name.
    :ivar count: how many there were.
    """

    def __init__(self, owner: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = owner
        self.count = 0
        self._clock = clock
        self._quiet_until = float("-inf")
        self._unsaid = 0
        self._lock = threading.Lock()

    def __call__(self, why: str) -> None:
        """Take note of one."""
        with self._lock:
            self.count += 1
            if self._clock() < self._quiet_until:
                self._unsaid += 1
                return
            self._quiet_until = self._clock() + _PAUSE
            unsaid, self._unsaid = self._unsaid, 0
        # As it would stand in a literal: no line of the log is made by who is refused.
        shown = why[:_LENGTH].encode("unicode_escape").decode("ascii")
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        logger.warning("ZEROMQ worker %r refused a connection: %s%s", self.owner, shown, more)
