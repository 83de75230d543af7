"""The tests of a transport find nearly all faulty transports that `mutation` makes."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest

from mutation.mutants import Mutant, mutants
from mutation.running import Fate, run, sound
from mutation.survivors import SOUND, listed, share

#: The share of mutants that must be killed.
_WANTED = 0.95
_EVERY = 60


def _fates(chosen: list[Mutant]) -> list[Fate]:
    return list(run(chosen, jobs=min(2, len(os.sched_getaffinity(0)))))


def _survivors(fates: list[Fate]) -> list[str]:
    """Return the mutants that have survived and are not listed."""
    reasons = listed()
    return [
        f"{fate.mutant} {fate.got}"
        for fate in fates
        if not fate.killed_by and (fate.mutant.fault, fate.mutant.before) not in reasons
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tests_kill_a_sample_of_mutants() -> None:
    """The sample has each 60th mutant; mutants that are known to survive are only in a whole run."""
    reasons = listed()
    killable = [
        mutant
        for mutant in mutants(SOUND.read_text())
        if (mutant.fault, mutant.before) not in reasons
    ]
    assert not _survivors(_fates(killable[::_EVERY]))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_only_listed_mutants_survive() -> None:
    (intact,) = _fates([sound(SOUND.read_text())])
    assert not intact.killed_by, intact.got
    fates = _fates(list(mutants(SOUND.read_text())))
    assert not _survivors(fates)
    assert share(fates) >= _WANTED


def test_every_listed_survivor_is_a_mutant_and_has_a_reason() -> None:
    there = {(mutant.fault, mutant.before) for mutant in mutants(SOUND.read_text())}
    assert set(listed()) <= there
    assert all(listed().values())


def test_mutants_are_different_programs_with_one_fault() -> None:
    source = dedent(
        """
        def f(a: int, b: int) -> int:
            '''Text.'''
            if a < b and b:
                raise ValueError(a, b)
            return a + 1
        """
    )
    made = list(mutants(source))
    assert len({mutant.source for mutant in made}) == len(made)
    assert {mutant.fault for mutant in made} == {
        "statement dropped",
        "nothing returned",
        "condition negated",
        "condition always true",
        "comparison changed",
        "and taken for or",
        "part of a condition dropped",
        "operator changed",
        "arguments swapped",
        "one more",
        "one less",
    }
    assert {mutant.line for mutant in made} == {4, 5, 6}
