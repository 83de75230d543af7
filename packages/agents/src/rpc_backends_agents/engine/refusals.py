"""Rate-limited warnings about refused connections, so that attackers cannot fill the log."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable

from rpc_backends_agents.engine.variables import logger_of

#: Seconds after a warning during which further refusals are only counted.
_PAUSE = 10.0
#: Characters shown of a reason, because the refused process supplies part of it.
_LENGTH = 500


class Refusals:
    """Logs a warning for a refused connection, then only counts refusals for some seconds.

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
            self._quiet_until = self._clock() + _PAUSE
            unsaid, self._unsaid = self._unsaid, 0
        # Escaped, so that a refused process cannot forge log lines. str.encode() would import the codec,
        # which fails if no file can be opened: then connections are refused, too.
        shown = codecs.unicode_escape_encode(why[:_LENGTH])[0].decode("ascii")
        more = f" ({unsaid} more since the last such line)" if unsaid else ""
        logger_of(self.backend).warning(
            "%s worker %r refused a connection: %s%s", self.backend, self.owner, shown, more
        )
