"""Time limits of tests, which get shorter once tests of the backend have hung.

A backend that hangs in one test usually hangs in the next ones too. Only the first of them costs its full
time limit.
"""

from __future__ import annotations

import os

#: Seconds in which a static group forms.
START = 15.0
#: The same after a group has not formed in time.
START_AGAIN = 5.0
#: If this many groups have not formed in time, and no group has, no other group is started.
GIVE_UP_AFTER = 3
#: Seconds that a test has at least after a test of its chapter has hung.
_AFTER_ONE = 10.0
#: The same after three tests of its chapter in a row have hung.
_AFTER_THREE = 5.0
#: The least seconds that a thread or a connection has to end, after its work is done.
ENDING = 1.0
#: The variable with the factor of all limits, in the workers of a test.
_FACTOR = "RPC_CONFORMANCE_TIMEOUT_FACTOR"


def scaled(seconds: float) -> float:
    """Return a time limit in a worker, multiplied by the factor of the run if that is above 1."""
    return seconds * max(1.0, float(os.environ.get(_FACTOR, "1")))


def ending(factor: float) -> float:
    """Return the seconds that a thread or a connection has to end, after its work is done."""
    return ENDING * max(1.0, factor)


class TimeLimits:
    """The time limits for tests of one backend in this process.

    :param factor: multiplies all limits.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor
        self._formed = False
        self._failed_starts = 0
        #: By chapter, the number of tests that have hung since the last one that did not.
        self._hangs: dict[str, int] = {}

    def environ(self) -> dict[str, str]:
        """Return the variables with which workers know the factor."""
        return {_FACTOR: str(self._factor)}

    @property
    def ending(self) -> float:
        """Seconds that a thread has to end, after its work is done."""
        return ending(self._factor)

    def start(self) -> float:
        """Return the seconds in which a group must form."""
        return self._factor * (START_AGAIN if self._failed_starts else START)

    def record_start(self, formed: bool) -> None:
        """Record whether a group has formed in time."""
        self._formed = self._formed or formed
        self._failed_starts = 0 if formed else self._failed_starts + 1

    @property
    def hopeless(self) -> bool:
        """Whether none of several groups has formed in time, so that the next one is not worth a wait."""
        return self._failed_starts >= GIVE_UP_AFTER and not self._formed

    def test(self, chapter: str, seconds: float) -> float:
        """Return the seconds that a test may take.

        :param seconds: its limit as long as nothing has hung.
        """
        hangs = self._hangs.get(chapter, 0)
        if self.hopeless:
            seconds = min(seconds, START_AGAIN)
        elif hangs >= GIVE_UP_AFTER:
            seconds = min(seconds, max(_AFTER_THREE, seconds / 6))
        elif chapter in self._hangs:
            seconds = min(seconds, max(_AFTER_ONE, seconds / 3))
        return self._factor * seconds

    def record_test(self, chapter: str, hung: bool) -> None:
        """Record whether a test of a chapter has exceeded its time limit."""
        if hung:
            self._hangs[chapter] = self._hangs.get(chapter, 0) + 1
        elif chapter in self._hangs:
            self._hangs[chapter] = 0
