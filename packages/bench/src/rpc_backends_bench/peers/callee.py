"""The interface that the bench needs of each peer."""

from __future__ import annotations

from typing import Any, Protocol


class Callee(Protocol):
    """A called process, as its caller sees it. The caller has started it."""

    def call(self, function: str, *args: Any) -> Any:
        """Call ``noop``, ``echo`` or ``sink`` in the process and return the result."""

    def start(self) -> Any:
        """Start a call of ``noop``; return a handle for :meth:`wait`."""

    def wait(self, started: Any) -> None:
        """Wait for the result of a started call."""

    def close(self) -> None:
        """End the process and everything that was started for it."""
