"""The exceptions of fault injection."""

from __future__ import annotations

from collections.abc import Iterable


class RuleError(ValueError):
    """Rules, logs or settings that are not valid.

    :ivar problems: one text for each problem: where it is, what is wrong, what to write instead.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        # A plain string: torch passes it when it raises another worker's exception again here.
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class NotWrappedError(RuntimeError):
    """A rule was added on a worker whose agent runs without fault injection."""
