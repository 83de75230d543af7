"""Time limits of tests get shorter after tests of the backend have hung."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backends_processes import WorkerContext
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.subject import Subject
from rpc_backends_testing.time_limits import (
    GIVE_UP_AFTER,
    START,
    START_AGAIN,
    TimeLimits,
    scaled,
)


def test_limits_are_kept_while_nothing_hangs() -> None:
    limits = TimeLimits()
    limits.record_test("calls", hung=False)
    limits.record_start(formed=True)

    assert limits.test("calls", 30) == 30
    assert limits.start() == START


def test_a_hang_shortens_limits_of_its_chapter() -> None:
    limits = TimeLimits()
    limits.record_test("calls", hung=True)

    assert [limits.test("calls", seconds) for seconds in (5, 15, 30, 120)] == [5, 10, 10, 40]
    assert limits.test("data", 30) == 30


def test_three_hangs_shorten_limits_further() -> None:
    limits = TimeLimits()
    for _ in range(3):
        limits.record_test("calls", hung=True)
    assert [limits.test("calls", seconds) for seconds in (30, 120)] == [5, 20]

    limits.record_test("calls", hung=False)
    assert limits.test("calls", 30) == 10


def test_a_late_group_shortens_the_next_start() -> None:
    limits = TimeLimits()
    limits.record_start(formed=False)
    assert limits.start() == START_AGAIN

    limits.record_start(formed=True)
    assert limits.start() == START


@pytest.mark.parametrize("formed_before", [False, True])
def test_starts_are_hopeless_without_any_group(formed_before: bool) -> None:
    limits = TimeLimits()
    if formed_before:
        limits.record_start(formed=True)
    for _ in range(GIVE_UP_AFTER):
        assert not limits.hopeless
        limits.record_start(formed=False)

    assert limits.hopeless is not formed_before


def test_factor_multiplies_every_limit() -> None:
    limits = TimeLimits(factor=2)
    assert (limits.test("calls", 30), limits.start()) == (60, 2 * START)


def limit_of_six_seconds(me: WorkerContext) -> float:
    return scaled(6.0)


def test_workers_multiply_their_own_limits(tmp_path: Path) -> None:
    groups = Groups(Subject("TENSORPIPE"), tmp_path, limits=TimeLimits(factor=2))
    with groups.workers(1) as workers:
        assert workers[0].call(limit_of_six_seconds) == 12
