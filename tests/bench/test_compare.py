"""`--compare` finds changes beyond the noise, and no others."""

from __future__ import annotations

import pytest

from bench.kit import OURS, made_up
from rpc_backends_bench.compare import compare


def test_a_run_compared_with_itself_has_no_change() -> None:
    run = made_up()

    assert compare(run, run).beyond_noise() == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_and_drift_are_no_change(seed: int) -> None:
    comparison = compare(made_up(seed=seed), made_up(seed=seed + 10))

    assert comparison.beyond_noise() == []
    assert len(comparison.changes) > 30


def test_a_change_is_found_and_classified() -> None:
    after = made_up({"latency.noop": 1.3, "latency.builtin": 0.7}, seed=1)

    changes = compare(made_up(seed=2), after).beyond_noise()

    assert {(change.row, change.label, change.verdict) for change in changes} == {
        ("latency.noop", OURS, "worse"),
        ("latency.builtin", OURS, "better"),
    }
    assert changes[0].factor == pytest.approx(0.7, rel=0.1)  # the larger change is first


def test_more_calls_per_second_are_better() -> None:
    changes = compare(made_up(seed=2), made_up({"throughput.inflight": 1.5}, seed=1)).beyond_noise()

    assert {(change.row, change.verdict) for change in changes} == {
        ("throughput.inflight", "better")
    }
    assert [change.x for change in changes].count(4) == 1


def test_a_change_below_the_noise_is_ignored() -> None:
    quiet = {"noise": 0.0005}

    comparison = compare(made_up(seed=2, **quiet), made_up({"latency.noop": 1.03}, seed=1, **quiet))

    assert comparison.beyond_noise() == []


def test_few_rounds_find_only_large_changes() -> None:
    few = {"rounds": 3, "noise": 0.005}
    before = made_up(seed=2, **few)

    assert compare(before, made_up({"group.start": 1.15}, seed=1, **few)).beyond_noise() == []
    changes = compare(before, made_up({"group.start": 1.6}, seed=1, **few)).beyond_noise()
    assert {change.row for change in changes} == {"group.start"}


def test_runs_with_different_references_compare_figures() -> None:
    comparison = compare(made_up(reference="ZEROMQ"), made_up({"latency.noop": 3}, noise=0.001))

    assert all(change.absolute for change in comparison.changes)
    assert "figures are compared and not ratios" in comparison.notes[0]


def test_other_differences_between_runs_are_noted() -> None:
    before, after = made_up(), made_up()
    before.machine["versions"]["torch"] = "2.6.0"
    before.plan["name"] = "full"

    notes = "\n".join(compare(before, after).notes)

    assert "torch: 2.6.0 then" in notes
    assert "The old run was full, this one is quick" in notes


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_a_change_from_or_to_zero_has_no_factor(before: float, after: float) -> None:
    old, new = (made_up({"cpu.idle": factor}, seed=1) for factor in (before, after))

    comparison = compare(old, new)

    assert comparison.beyond_noise() == []
    (idle,) = [change for change in comparison.changes if change.row == "cpu.idle"]
    assert idle.factor == 1.0
