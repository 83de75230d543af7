"""Groups that cannot be formed: every worker gets the reason at once and can try again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rpc_backends_testing.resource_leaks import opened
from support import steps
from support.command import wait_until
from support.packages import write_package
from support.steps import AT_ONCE, Meeting
from support.workers import Failure, Step, Workers


def assert_same_error_at_once(failures: list[Failure], kind: str) -> str:
    """Check that all failed with the same error and none waited; return its text."""
    assert {failure.kinds[0] for failure in failures} == {kind}
    assert len({failure.text for failure in failures}) == 1
    assert max(failure.seconds for failure in failures) < AT_ONCE
    return failures[0].text


def assert_a_group_can_be_formed(workers: Workers, where: Meeting) -> None:
    """Check that all live workers can form a group now, and leave it."""
    names = [worker.name for worker in workers if worker.status is None]
    workers.run(steps.join, where.url)
    assert workers.run(steps.call_all) == [{name: name for name in names}] * len(names)
    workers.run(steps.leave)


def start_waiting(workers: Workers, where: Meeting, *indices: int, **arguments: Any) -> list[Step]:
    """Start workers that have to wait for others; return once all of them wait."""
    started = [
        workers[index].start(steps.join_and_tell, where.url, **arguments) for index in indices
    ]
    for step in started:
        assert step.news() == "waiting"
    return started


# --- workers that disagree -----------------------------------------------------------------------


def test_a_name_used_twice_is_an_error_for_all(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={2: {"name": "worker1"}})

        text = assert_same_error_at_once(failures, "GroupError")
        assert text == "RPC worker name worker1 is not unique: ranks 1 and 2 share it."
        assert_a_group_can_be_formed(workers, where)


def test_different_backends_are_an_error_for_all(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={1: {"backend": "FAULTY_TENSORPIPE"}})

        text = assert_same_error_at_once(failures, "GroupError")
        assert "'worker0' (rank 0): TENSORPIPE" in text
        assert "'worker1' (rank 1): FAULTY_TENSORPIPE" in text
        assert_a_group_can_be_formed(workers, where)


def test_different_world_sizes_are_an_error_for_all(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={1: {"world_size": 3}})

        text = assert_same_error_at_once(failures, "GroupError")
        assert "disagree on world_size" in text
        assert_a_group_can_be_formed(workers, where)


def test_a_rank_beyond_the_world_size_is_refused(url: str) -> None:
    with Workers(2) as workers:
        failure = workers[1].start(steps.join, url, rank=2).error()

        assert failure.kinds[0] == "ValueError"
        assert failure.text.startswith("rank is 2 for RPC worker 'worker1'; it must be from 0 to 1")


# --- workers that are missing --------------------------------------------------------------------


def test_the_timeout_names_the_missing_worker_and_leaks_nothing(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(opened)
        workers[1].call(steps.limit_join, 2)  # only this worker, once the other has arrived
        (first,) = start_waiting(workers, where, 0)
        second = workers[1].start(steps.join, where.url)

        failures = [first.error(), second.error()]

        text = assert_same_error_at_once(failures, "GroupTimeoutError")
        assert "Missing: rank 2" in text
        assert "RPC_BACKENDS_JOIN_TIMEOUT" in text
        assert {"TimeoutError", "RuntimeError"} < set(failures[0].kinds)
        assert workers.run(steps.is_running) == [False] * 3
        wait_until(lambda: workers.run(opened) == before)
        workers[1].call(steps.limit_join, None)
        assert_a_group_can_be_formed(workers, where)


@pytest.mark.slow
def test_a_missing_store_host_is_a_timeout(tmp_path: Path) -> None:
    env = {"RPC_BACKENDS_JOIN_TIMEOUT": "2"}
    with steps.meeting("tcp", tmp_path) as where, Workers(2, env={**where.env, **env}) as workers:
        failure = workers[1].start(steps.join, where.url).error()

        assert failure.kinds[0] == "GroupTimeoutError"
        assert "'worker1' (rank 1)" in failure.text
        assert where.url in failure.text
        assert failure.seconds < AT_ONCE
        assert not workers[1].call(steps.is_running)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "inf", "nan"])
def test_an_invalid_join_timeout_is_refused(url: str, text: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_JOIN_TIMEOUT": text}) as workers:
        (failure,) = workers.errors(steps.join, url)

        assert failure.kinds[0] == "SettingError"
        assert f"RPC_BACKENDS_JOIN_TIMEOUT={text!r}" in failure.text


def test_a_worker_killed_while_joining_can_be_restarted(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        (first, _) = start_waiting(workers, where, 0, 1)
        workers[1].kill()
        again = workers.add()
        (second,) = start_waiting(workers, where, 3, rank=1, name="worker1", world_size=3)

        workers[2].call(steps.join, where.url)

        first.result()
        second.result()
        everybody = {name: name for name in ("worker0", "worker1", "worker2")}
        assert workers.run(steps.call_all) == [everybody] * 3
        assert workers[0].call(steps.call, 1) == f"worker1 {again.pid}"
        workers.run(steps.leave)


@pytest.mark.slow
def test_the_timeout_names_a_killed_worker(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.shorten_waits)
        (first, _) = start_waiting(workers, where, 0, 1, rpc_timeout=2)
        workers[1].kill()

        last = workers[2].start(steps.join, where.url, rpc_timeout=2)

        for failure in (first.error(), last.error()):
            assert failure.kinds[0] == "GroupTimeoutError"
            assert "'worker1' (rank 1)" in failure.text


def test_a_store_host_killed_while_joining_can_be_restarted(
    tmp_path: Path,
) -> None:
    with steps.meeting("tcp", tmp_path) as where, Workers(2, env=where.env) as workers:
        _, second = start_waiting(workers, where, 0, 1, world_size=3)
        workers[0].kill()

        workers.add()
        workers.add()
        workers.run(
            steps.join,
            where.url,
            only={2: {"rank": 0, "name": "worker0"}, 3: {"rank": 2, "name": "worker2"}},
            world_size=3,
            on=[2, 3],
        )

        second.result()
        everybody = {name: name for name in ("worker0", "worker1", "worker2")}
        assert workers.run(steps.call_all) == [everybody] * 3
        workers.run(steps.leave)


def test_a_store_host_killed_late_is_named(tmp_path: Path) -> None:
    with steps.meeting("tcp", tmp_path) as where, Workers(2, env=where.env) as workers:
        workers[1].call(steps.shorten_waits, 0.0)
        _, second = start_waiting(workers, where, 0, 1, world_size=3)
        workers[0].kill()

        failure = second.error()
        assert failure.kinds[0] == "StoreError"
        assert (
            "The process that hosts it (rank 0, or the launcher) has probably ended" in failure.text
        )


@pytest.mark.slow
def test_a_killed_store_host_is_a_timeout(
    tmp_path: Path,
) -> None:
    with steps.meeting("tcp", tmp_path) as where, Workers(3, env=where.env) as workers:
        workers[1].call(steps.limit_join, 2)
        start_waiting(workers, where, 0)
        (second,) = start_waiting(workers, where, 1)
        workers[0].kill()

        failure = second.error()

        assert failure.kinds[0] == "GroupTimeoutError"
        assert where.url in failure.text
        assert failure.seconds < AT_ONCE + 2
        assert not workers[1].call(steps.is_running)


# --- workers that fail ---------------------------------------------------------------------------


REFUSES = """
    from rpc_backends_core import RefusedError, hookimpl

    @hookimpl
    def {hook}():
        raise RefusedError("not on this host")
"""


@pytest.mark.parametrize("hook", ["rpc_backends_init_backend", "rpc_backends_agent"])
def test_all_workers_read_the_refusal_of_a_hook(where: Meeting, tmp_path: Path, hook: str) -> None:
    wheel = write_package(
        tmp_path,
        "rpc-hooks-policy",
        modules={"rpc_hooks_policy.py": REFUSES.format(hook=hook)},
        entry_points={"rpc.backends.hooks": {"policy": "rpc_hooks_policy"}},
    )
    with Workers(3, env=where.env) as workers:
        workers[1].call(steps.put_on_path, wheel)

        failures = workers.errors(steps.join, where.url)

        assert failures[1].kinds[0] == "RefusedError"
        for failure in (failures[0], failures[2]):
            assert failure.kinds[0] == "GroupError"
            assert "'worker1' (rank 1) failed to start" in failure.text
            assert "not on this host" in failure.text
        assert max(failure.seconds for failure in failures) < AT_ONCE
        assert workers.run(steps.is_running) == [False] * 3


def test_all_workers_read_whose_engine_failed(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(opened)

        # No machine that runs these tests has this transport.
        failures = workers.errors(steps.join, where.url, only={1: {"_transports": ["ibv"]}})

        assert "transport" in failures[1].text
        for failure in (failures[0], failures[2]):
            assert failure.kinds[0] == "GroupError"
            assert "'worker1' (rank 1) failed to start" in failure.text
            assert failures[1].text in failure.text
        assert max(failure.seconds for failure in failures) < AT_ONCE
        wait_until(lambda: workers.run(opened) == before)
        assert_a_group_can_be_formed(workers, where)


def test_an_interrupt_ends_the_start_of_all_workers(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(opened)
        first, second = start_waiting(workers, where, 0, 1)

        workers[1].interrupt()

        assert second.error().kinds[0] == "KeyboardInterrupt"
        failure = first.error()
        assert failure.kinds[0] == "GroupError"
        assert "'worker1' (rank 1) gave up: KeyboardInterrupt" in failure.text
        wait_until(lambda: workers.run(opened) == before)
        assert_a_group_can_be_formed(workers, where)
