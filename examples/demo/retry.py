"""Retries calls that were certainly not sent, and counts faults.

After a timeout or a lost connection it is unknown whether the call ran, and a retry may run it twice. An
injected failure is different: the agent reports that it sent nothing, so any call can be retried. Only
that error is retried here; all others are raised unchanged.
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
    """Return whether ``error`` means that an agent failed the message on purpose and did not send it.

    torch puts the message's bytes into the error's text. If they are not valid UTF-8 (an RRef fetch),
    Python cannot build the RuntimeError and raises a UnicodeDecodeError that contains the text. Early
    releases of Python 3.11 (seen with 3.11.2) lose that error, too, and raise a RuntimeError without any
    text. No other failed call does that.
    """
    if isinstance(error, UnicodeDecodeError):
        return error.object.startswith(_NOT_SENT.encode())
    if not isinstance(error, RuntimeError):
        return False
    return not error.args or str(error).startswith(_NOT_SENT)


class FaultLog:
    """Makes a worker's calls, retries those that were not sent, and counts faults.

    :param delays: by message type, the delay of sends in seconds, as passed to the backend.
    :param attempts: how many times a call is tried before its error is raised.
    :param pause: seconds before the first retry; doubled before each further one.
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
        """Call ``function`` and return its result; call it again if its message was not sent.

        :param message_type: the type of message that ``function`` sends, for the count.
        :raises Exception: an error of ``function`` that is not a failure to send, or the last failure.
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
        """Count a delay if a send of ``message_type`` took at least as long as its injected delay.

        :param started: the value of ``time.perf_counter()`` just before the send.
        """
        delay = self._delays.get(message_type, 0.0)
        if delay and time.perf_counter() - started >= delay:
            self._delayed[message_type] += 1

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of failures and delays since the last ``take``, by message type."""
        taken = dict(self._failed), dict(self._delayed)
        self._failed.clear()
        self._delayed.clear()
        return taken
