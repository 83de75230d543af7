"""What is asked of each of them."""

from __future__ import annotations

from typing import Any, Protocol


class Callee(Protocol):
    """A process that is called; the one that calls it has made it."""

    def call(self, function: str, *args: Any) -> Any:
        """Call ``noop``, ``echo`` or ``sink`` there, and return the answer."""

    def start(self) -> Any:
        """Call ``noop``, and return what :meth:`wait` takes."""

    def wait(self, started: Any) -> None:
        """Wait until the answer is there."""

    def close(self) -> None:
        """End the process, and all that was started for it."""
