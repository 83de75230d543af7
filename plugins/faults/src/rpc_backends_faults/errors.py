"""What is wrong with rules."""

from __future__ import annotations

from collections.abc import Iterable


class RuleError(ValueError):
    """Rules that mean nothing, each with its place and what to write instead.

    :ivar problems: one text each.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        # One text: what torch makes the exception of where another worker has raised it.
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class NotWrappedError(RuntimeError):
    """A rule was given to a worker whose agent nothing stands in front of."""
