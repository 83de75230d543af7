"""Taking turns: who is there, who has dropped out, and the order of a round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rpc_backends_bench.contestants import Contestant, ContestantError
from rpc_backends_bench.results import Problem, Results

_Contestant = TypeVar("_Contestant", bound=Contestant)


class Watching(Protocol):
    """Who is told how a run goes."""

    def at(self, what: str) -> None:
        """Hear what is measured next."""

    def step(self, seconds: float) -> None:
        """Hear that something is done that was expected to take so long."""


def in_turns(labels: list[str], chance: random.Random) -> list[str]:
    """Return the order in which they are measured in this round, which is drawn."""
    return chance.sample(labels, k=len(labels))


class Table(dict[str, _Contestant]):
    """The contestants of a sitting, by label; who fails is told of, ended, and no longer here.

    A context: within it the processes live, after it none does.
    """

    def __init__(self, results: Results) -> None:
        super().__init__()
        self._results = results

    def __enter__(self) -> Table[_Contestant]:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for one in self.values():
            one.close()

    @contextmanager
    def trying(self, label: str, at: str) -> Iterator[None]:
        """Do something with one of them; if it fails, it drops out, and the rest goes on."""
        try:
            yield
        except ContestantError as error:
            self._results.problems.append(Problem(label, at, str(error), error.detail))
            gone = self.pop(label, None)
            if gone is not None:
                gone.close()

    def enter(self, one: _Contestant, begin: Callable[[], object]) -> bool:
        """Start the processes of one, and ``begin``; then they stand still.

        :returns: whether it went well.
        """
        self[one.label] = one
        with self.trying(one.label, "start"):
            one.open()
            begin()
            one.freeze()
        return one.label in self

    @contextmanager
    def turn(self, label: str, at: str) -> Iterator[None]:
        """Let one of them run, the others standing still."""
        with self.trying(label, at):
            self[label].thaw()
            yield
            self[label].freeze()
