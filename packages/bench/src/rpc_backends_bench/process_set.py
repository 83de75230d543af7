"""A process set: participants that are alive at once, one of which at a time runs a block."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rpc_backends_bench.participants import Participant, ParticipantError
from rpc_backends_bench.results import Problem

_Item = TypeVar("_Item")
_Participant = TypeVar("_Participant", bound=Participant)


class ProgressListener(Protocol):
    """Receives the progress of a run."""

    def describe(self, what: str) -> None:
        """Receive a description of what is measured next."""

    def advance(self, seconds: float) -> None:
        """Receive progress: work that was expected to take ``seconds`` is done."""


def shuffled(items: Sequence[_Item], rng: random.Random) -> list[_Item]:
    """Return ``items`` in random order."""
    return rng.sample(items, k=len(items))


class ProcessSet(dict[str, _Participant]):
    """Participants by label. Failed participants are reported, terminated and removed.

    A context manager: at its end all processes end.

    :param problems: a list to which failures are added.
    """

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self._problems = problems

    def __enter__(self) -> ProcessSet[_Participant]:
        """Return the set, without participants."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for participant in self.values():
            participant.close()

    @contextmanager
    def guarded(self, label: str, what: str) -> Iterator[None]:
        """Remove the participant ``label`` if the block fails; the others continue.

        :param what: what is being done, for the report.
        """
        try:
            yield
        except ParticipantError as error:
            self._problems.append(Problem(label, what, str(error), error.detail))
            failed = self.pop(label, None)
            if failed is not None:
                failed.close()

    def add(self, participant: _Participant, start: Callable[[], object]) -> bool:
        """Start a participant's processes, call ``start``, and suspend them.

        :returns: whether that succeeded.
        """
        self[participant.label] = participant
        with self.guarded(participant.label, "start"):
            participant.open()
            start()
            participant.suspend()
        return participant.label in self

    @contextmanager
    def block(self, label: str, what: str) -> Iterator[None]:
        """Resume one participant for a block; the others stay suspended."""
        with self.guarded(label, what):
            self[label].resume()
            yield
            self[label].suspend()
