"""Time limits for calls that must end and for events that must happen."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

from rpc_backends_testing.deviations import deviate
from rpc_backends_testing.time_limits import ending

T = TypeVar("T")

#: Seconds that a method, a message or the report of a loss may take. Each takes milliseconds.
SECONDS = 5.0
#: The same after several limits have passed: the transport is broken, and its author waits.
SECONDS_WHEN_BROKEN = 0.7
_ENOUGH = 2


class Limits:
    """The time limits of one test run.

    :ivar timeout_factor: multiplies all limits.
    """

    def __init__(self, timeout_factor: float = 1.0) -> None:
        self.timeout_factor = timeout_factor
        self.passed = 0
        self._least = 0.0

    @property
    def seconds(self) -> float:
        """Seconds that a wait may take now."""
        limit = SECONDS if self.passed < _ENOUGH else SECONDS_WHEN_BROKEN
        return max(limit, self._least) * self.timeout_factor

    @property
    def ending(self) -> float:
        """Seconds that a thread or a connection has to end, after its work is done."""
        return ending(self.timeout_factor)

    @contextlib.contextmanager
    def at_least(self, seconds: float) -> Iterator[None]:
        """Let every wait of the block take this long: the transport may have its own time limit."""
        self._least = seconds
        try:
            yield
        finally:
            self._least = 0.0

    def note_passed(self) -> None:
        """Count a limit that has passed."""
        self.passed += 1

    def call(self, text: str, function: Callable[[], T], seconds: float | None = None) -> T:
        """Run ``function`` on a thread of its own, and return what it returns.

        :param text: the call, for the error.
        :param seconds: how long the call may take, if not :attr:`seconds`.
        :raises DeviationError: it did not return in time; its thread keeps running.
        :raises Exception: what the function raises.
        """
        limit = self.seconds if seconds is None else seconds * self.timeout_factor
        ended = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=run, name=text, daemon=True)
        thread.start()
        if not ended.wait(limit):
            self.note_passed()
            where = _stack(thread)
            raise deviate(text, f"returns within {limit:g} s", f"it still runs: {where}")
        thread.join()
        if errors:
            raise errors[0]
        return results[0]


def _stack(thread: threading.Thread) -> str:
    """Return where a thread is, in one line: its innermost frames."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "it has just ended"
    frames = traceback.extract_stack(frame)[-3:]
    return ", called by ".join(
        f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames[::-1]
    )
