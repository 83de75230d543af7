"""Repeating calls that are known not to have been sent, and counting the faults that were met.

Repeating a call whose fate is unknown (a timeout, a lost connection) may run it twice. An injected
failure is different: the agent says that it sent nothing, so the call can be made again whatever it
does. Only that error is retried here; every other one is raised as it came.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

# torch's mark for an intentional failure: RPCErrorType 2, then the text of the faulty agent.
_NOT_SENT = "RPCErr:2:Send attempt failed intentionally"


def was_not_sent(error: BaseException) -> bool:
    """Whether ``error`` says that an agent dropped the message on purpose, before sending it.

    torch puts the message's bytes into the error's text. Where these are not UTF-8 (an RRef fetch)
    Python cannot build the RuntimeError, and a UnicodeDecodeError that holds the text arrives. Early
    releases of Python 3.11 (seen with 3.11.2) lose that error as well, and raise a RuntimeError without a
    text, which no other failure of a call is.
    """
    if isinstance(error, UnicodeDecodeError):
        return error.object.startswith(_NOT_SENT.encode())
    if not isinstance(error, RuntimeError):
        return False
    return not error.args or str(error).startswith(_NOT_SENT)


class FaultLog:
    """Makes a worker's calls, repeats the ones that were not sent, and counts what it met.

    :param delays: seconds by message type that a send is held up, as given to the backend.
    :param attempts: how often one call is tried before its error is raised.
    :param pause: seconds before the first repetition; doubled before each further one.
    """

    def __init__(
        self, delays: Mapping[str, float] | None = None, attempts: int = 5, pause: float = 0.001
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {attempts!r}")
        self._delays = dict(delays or {})
        self._attempts = attempts
        self._pause = pause
        self._failed: Counter[str] = Counter()
        self._delayed: Counter[str] = Counter()

    def call(self, message_type: str, function: Callable[[], T]) -> T:
        """Return what ``function`` returns, calling it again while its message was not sent.

        :param message_type: the type of message that ``function`` sends, for the count.
        :raises Exception: what ``function`` raised, if it is not a failure to send or the last one.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return function()
            except (RuntimeError, UnicodeDecodeError) as error:
                if not was_not_sent(error):
                    raise
                self._failed[message_type] += 1
                if attempt == self._attempts:
                    raise
            time.sleep(self._pause * 2 ** (attempt - 1))

    def sent(self, message_type: str, started: float) -> None:
        """Count a delay if a send of ``message_type``, begun at ``started``, took that long.

        :param started: ``time.perf_counter()`` from just before the send.
        """
        delay = self._delays.get(message_type, 0.0)
        if delay and time.perf_counter() - started >= delay:
            self._delayed[message_type] += 1

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the failures and the delays met since the last ``take``, by message type."""
        taken = dict(self._failed), dict(self._delayed)
        self._failed.clear()
        self._delayed.clear()
        return taken
