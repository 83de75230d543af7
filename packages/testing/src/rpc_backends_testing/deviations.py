"""How a backend or a transport differs from what is promised, and the error that reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Deviation:
    """How a backend differs from the contract.

    :ivar call: the call, as a program would write it.
    :ivar expected: what the contract requires.
    :ivar got: the actual result.
    """

    call: str
    expected: str
    got: str


class DeviationError(AssertionError):
    """A failed check; :attr:`deviation` has the details."""

    def __init__(self, deviation: Deviation) -> None:
        super().__init__(
            f"call:     {deviation.call}\nexpected: {deviation.expected}\ngot:      {deviation.got}"
        )
        self.deviation = deviation

    @property
    def worker_details(self) -> Deviation:
        """What a worker sends with this error to the process of the test."""
        return self.deviation

    def __reduce__(self) -> Any:
        return DeviationError, (self.deviation,)


def deviate(call: str, expected: str, got: str) -> DeviationError:
    """Return the error of a failed check that is not an `Expectation`."""
    return DeviationError(Deviation(call, expected, got))
