"""The order of blocks, the expected duration of a run, and failing participants."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from rpc_backends_bench import measure, plan
from rpc_backends_bench.participants import Participant, ParticipantError
from rpc_backends_bench.process_set import ProcessSet, shuffled
from rpc_backends_bench.results import Problem


class Fake(Participant):
    """A participant that logs the calls of its methods."""

    def __init__(self, label: str, log: list[str]) -> None:
        self.label = label
        self._log = log

    def open(self) -> None:
        self._log.append(f"open {self.label}")

    def suspend(self) -> None:
        self._log.append(f"suspend {self.label}")

    def resume(self) -> None:
        self._log.append(f"resume {self.label}")

    def close(self) -> None:
        self._log.append(f"close {self.label}")


def nothing() -> None:
    """Succeed without starting anything."""


def test_each_round_runs_all_in_random_order() -> None:
    chance = random.Random(0)
    rounds = [tuple(shuffled(["a", "b", "c"], chance)) for _ in range(600)]

    assert {frozenset(order) for order in rounds} == {frozenset("abc")}
    assert len(set(rounds)) == 6
    assert min(Counter(rounds).values()) > 60


def test_the_same_seed_gives_the_same_order() -> None:
    first, second = (
        [shuffled(["a", "b", "c"], chance) for _ in range(9)]
        for chance in (random.Random(7), random.Random(7))
    )

    assert first == second


def test_all_participants_but_one_are_suspended() -> None:
    log: list[str] = []
    with ProcessSet[Participant]([]) as processes:
        for label in "ab":
            assert processes.add(Fake(label, log), nothing)
        with processes.block("a", "a block"):
            log.append("measured")

    assert log == [
        *("open a", "suspend a", "open b", "suspend b"),
        *("resume a", "measured", "suspend a"),
        *("close a", "close b"),
    ]


def test_a_failed_participant_is_reported_and_removed() -> None:
    log: list[str] = []
    problems: list[Problem] = []
    with ProcessSet[Participant](problems) as processes:
        for label in "ab":
            processes.add(Fake(label, log), nothing)
        with processes.block("a", "a block"):
            raise ParticipantError("it fell over", "where")
        assert list(processes) == ["b"]
        assert log[-1] == "close a"

    assert [(problem.label, problem.at, problem.text, problem.detail) for problem in problems] == [
        ("a", "a block", "it fell over", "where")
    ]


def test_a_participant_that_cannot_start_is_not_added() -> None:
    def fail() -> None:
        raise ParticipantError("no")

    problems: list[Problem] = []
    with ProcessSet[Participant](problems) as processes:
        assert not processes.add(Fake("a", []), fail)
        assert not processes

    assert [problem.at for problem in problems] == ["start"]


def test_rows_are_chosen_by_id_prefix_or_pattern() -> None:
    assert plan.choose(["latency.noop"]) == ("latency.noop",)
    assert plan.choose(["latency.loaded"]) == ("latency.loaded.noop", "latency.loaded.builtin")
    assert plan.choose(["*.noop", "cpu"])[:2] == ("latency.noop", "latency.loaded.noop")
    assert plan.choose([]) == plan.ALL
    with pytest.raises(ValueError, match=r"The rows are: latency\.noop"):
        plan.choose(["latency.nop"])


def test_smaller_plans_are_expected_to_be_shorter() -> None:
    whole, quick = measure.expected(plan.FULL, 2), measure.expected(plan.QUICK, 2)
    one_row = measure.expected(replace(plan.QUICK, only=("latency.noop",)), 2)

    assert 0 < one_row < quick < whole
    assert measure.expected(plan.QUICK, 3) > quick


def test_no_group_is_larger_than_the_largest() -> None:
    small = plan.FULL.up_to(8)

    assert [size for size, _ in small.groups] == [2, 4, 8]
    assert small.joins == tuple((8, rounds) for _, rounds in plan.FULL.joins)
    assert max(small.clients) + 1 <= 8
