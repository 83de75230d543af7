"""Who takes a turn when, what a run is expected to take, and what happens to those that fail."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from bench.kit import made_up
from rpc_backends_bench import measure, plan
from rpc_backends_bench.contestants import Contestant, ContestantError
from rpc_backends_bench.turns import Table, in_turns


class Fake(Contestant):
    """Writes down what is done with it."""

    def __init__(self, label: str, log: list[str]) -> None:
        self.label = label
        self._log = log

    def open(self) -> None:
        self._log.append(f"open {self.label}")

    def freeze(self) -> None:
        self._log.append(f"freeze {self.label}")

    def thaw(self) -> None:
        self._log.append(f"thaw {self.label}")

    def close(self) -> None:
        self._log.append(f"close {self.label}")


def nothing() -> None:
    """Begin as if all went well."""


def test_in_each_round_everybody_has_one_turn_in_an_order_that_is_drawn() -> None:
    chance = random.Random(0)
    rounds = [tuple(in_turns(["a", "b", "c"], chance)) for _ in range(600)]

    assert {frozenset(one) for one in rounds} == {frozenset("abc")}
    assert len(set(rounds)) == 6
    assert min(Counter(rounds).values()) > 60


def test_the_same_seed_gives_the_same_order() -> None:
    one, other = (
        [in_turns(["a", "b", "c"], chance) for _ in range(9)]
        for chance in (random.Random(7), random.Random(7))
    )

    assert one == other


def test_all_stand_still_but_the_one_whose_turn_it_is() -> None:
    log: list[str] = []
    with Table[Contestant](made_up(rounds=1)) as table:
        for label in "ab":
            assert table.enter(Fake(label, log), nothing)
        with table.turn("a", "a block"):
            log.append("measured")

    assert log == [
        *("open a", "freeze a", "open b", "freeze b"),
        *("thaw a", "measured", "freeze a"),
        *("close a", "close b"),
    ]


def test_who_fails_is_ended_and_told_of_and_the_others_go_on() -> None:
    log: list[str] = []
    results = made_up(rounds=1)
    with Table[Contestant](results) as table:
        for label in "ab":
            table.enter(Fake(label, log), nothing)
        with table.turn("a", "a block"):
            raise ContestantError("it fell over", "where")
        assert list(table) == ["b"]
        assert log[-1] == "close a"

    assert [(one.label, one.at, one.text, one.detail) for one in results.problems] == [
        ("a", "a block", "it fell over", "where")
    ]


def test_who_cannot_start_does_not_enter() -> None:
    def fail() -> None:
        raise ContestantError("no")

    results = made_up(rounds=1)
    with Table[Contestant](results) as table:
        assert not table.enter(Fake("a", []), fail)
        assert not table

    assert [one.at for one in results.problems] == ["start"]


def test_rows_are_chosen_by_id_by_beginning_or_by_pattern() -> None:
    assert plan.choose(["latency.noop"]) == ("latency.noop",)
    assert plan.choose(["latency.loaded"]) == ("latency.loaded.noop", "latency.loaded.builtin")
    assert plan.choose(["*.noop", "cpu"])[:2] == ("latency.noop", "latency.loaded.noop")
    assert plan.choose([]) == plan.ALL
    with pytest.raises(ValueError, match=r"There are: latency\.noop"):
        plan.choose(["latency.nop"])


def test_less_is_expected_of_fewer_rows_and_of_the_quick_plan() -> None:
    whole, quick = measure.expected(plan.FULL, 2), measure.expected(plan.QUICK, 2)
    one = measure.expected(replace(plan.QUICK, only=("latency.noop",)), 2)

    assert 0 < one < quick < whole
    assert measure.expected(plan.QUICK, 3) > quick


def test_no_group_is_larger_than_the_largest() -> None:
    small = plan.FULL.up_to(8)

    assert [size for size, _ in small.groups] == [2, 4, 8]
    assert small.joins == tuple((8, rounds) for _, rounds in plan.FULL.joins)
    assert max(small.clients) + 1 <= 8
