"""Groups that cannot be formed: everybody gets the reason, soon, and can try again."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support import steps
from support.steps import AT_ONCE, Meeting
from support.workers import Failure, Me, Step, Workers

from rpc_backends_core import RefusedError, hookimpl


def assert_same_error_at_once(failures: list[Failure], kind: str) -> str:
    """Check that all failed alike and none waited; return what they read."""
    assert {failure.kinds[0] for failure in failures} == {kind}
    assert len({failure.text for failure in failures}) == 1
    assert max(failure.seconds for failure in failures) < AT_ONCE
    return failures[0].text


def assert_a_group_can_be_formed(workers: Workers, where: Meeting) -> None:
    """Check that the same processes, all of them, can have a group now, and leave it."""
    names = [worker.name for worker in workers if worker.status is None]
    workers.run(steps.join, where.url)
    assert workers.run(steps.call_all) == [{name: name for name in names}] * len(names)
    workers.run(steps.leave)


def join_and_tell(me: Me, url: str, **arguments: Any) -> None:
    """Join, telling the test when this worker has arrived and waits for the others."""
    from rpc_backends_core.group import formation

    wait_for = formation.wait_for

    def tell_and_wait(*args: Any, **kwargs: Any) -> Any:
        me.tell("waiting")
        return wait_for(*args, **kwargs)

    formation.wait_for = tell_and_wait
    try:
        steps.join(me, url, **arguments)
    finally:
        formation.wait_for = wait_for


def start_waiting(
    workers: Workers, where: Meeting, *indices: int, **arguments: Any
) -> list[Step]:
    """Let workers arrive that wait for others; return when they do."""
    started = [workers[index].start(join_and_tell, where.url, **arguments) for index in indices]
    for step in started:
        assert step.news() == "waiting"
    return started


# --- workers that disagree -----------------------------------------------------------------------


def test_two_workers_of_one_name_are_an_error_for_all(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={2: {"name": "worker1"}})

        text = assert_same_error_at_once(failures, "GroupError")
        assert text == "RPC worker name worker1 is not unique: ranks 1 and 2 share it."
        assert_a_group_can_be_formed(workers, where)


def test_workers_of_different_backends_are_an_error_for_all(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        failures = workers.errors(
            steps.join, where.url, only={1: {"backend": "FAULTY_TENSORPIPE"}}
        )

        text = assert_same_error_at_once(failures, "GroupError")
        assert "'worker0' (rank 0): TENSORPIPE" in text
        assert "'worker1' (rank 1): FAULTY_TENSORPIPE" in text
        assert_a_group_can_be_formed(workers, where)


def test_different_world_sizes_are_an_error_for_all(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={1: {"world_size": 3}})

        text = assert_same_error_at_once(failures, "GroupError")
        assert "disagree on the size" in text
        assert_a_group_can_be_formed(workers, where)


def test_a_rank_beyond_the_world_size_is_an_error_of_that_worker(url: str) -> None:
    with Workers(2) as workers:
        failure = workers[1].start(steps.join, url, rank=2).error()

        assert failure.kinds[0] == "ValueError"
        assert "rank 2 of worker 'worker1' is not below the world size 2" in failure.text


# --- workers that do not come --------------------------------------------------------------------


def test_a_worker_that_never_comes_is_named_and_nothing_is_left(where: Meeting) -> None:
    with Workers(3, env={"RPC_BACKENDS_JOIN_TIMEOUT": "2", **where.env}) as workers:
        workers.run(steps.warm_up)
        before = workers.run(steps.opened)

        failures = workers.errors(steps.join, where.url, on=[0, 1])

        text = assert_same_error_at_once(failures, "GroupTimeoutError")
        assert "Missing: rank 2" in text
        assert "RPC_BACKENDS_JOIN_TIMEOUT" in text
        assert {"TimeoutError", "RuntimeError"} < set(failures[0].kinds)
        assert workers.run(steps.is_running) == [False] * 3
        assert workers.run(steps.opened) == before
        assert_a_group_can_be_formed(workers, where)


@pytest.mark.parametrize("text", ["soon", "-1", "0", "inf", "nan"])
def test_a_join_timeout_that_is_no_number_of_seconds_is_refused(url: str, text: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_JOIN_TIMEOUT": text}) as workers:
        (failure,) = workers.errors(steps.join, url)

        assert failure.kinds[0] == "SettingError"
        assert f"RPC_BACKENDS_JOIN_TIMEOUT={text!r}" in failure.text


def test_a_worker_killed_while_the_group_forms_can_be_started_again(where: Meeting) -> None:
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


def test_a_worker_killed_before_the_group_is_complete_is_named(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        (first, _) = start_waiting(workers, where, 0, 1, rpc_timeout=2)
        workers[1].kill()

        last = workers[2].start(steps.join, where.url, rpc_timeout=2)

        for failure in (first.error(), last.error()):
            assert failure.kinds[0] == "GroupTimeoutError"
            assert "'worker1' (rank 1)" in failure.text


def test_the_others_are_told_when_the_host_of_the_store_is_killed(where: Meeting) -> None:
    if where.kind == "file":
        pytest.skip("a file has no host")
    with Workers(3, env=where.env) as workers:
        _, second = start_waiting(workers, where, 0, 1)
        killed = time.monotonic()
        workers[0].kill()

        failure = second.error()

        assert time.monotonic() - killed < 2 * AT_ONCE
        assert failure.kinds[0] in ("DistNetworkError", "GroupError")


# --- workers that fail ---------------------------------------------------------------------------


class RefusesToStart:
    """A hook package that forbids RPC on one worker."""

    @hookimpl
    def rpc_backends_init_backend(self) -> None:
        raise RefusedError("not on this host")


class RefusesTheAgent:
    """A hook package that forbids an agent."""

    @hookimpl
    def rpc_backends_agent(self) -> None:
        raise RefusedError("not on this host")


def join_with_hook_on_the_second(me: Me, url: str, plugin: type) -> None:
    from rpc_backends_core import hooks

    if me.index == 1:
        hooks._hooks().manager.register(plugin())
    steps.join(me, url)


@pytest.mark.parametrize("plugin", [RefusesToStart, RefusesTheAgent])
def test_a_refusal_by_a_hook_on_one_worker_is_read_by_all(where: Meeting, plugin: type) -> None:
    with Workers(3, env=where.env) as workers:
        failures = workers.errors(join_with_hook_on_the_second, where.url, plugin)

        assert failures[1].kinds[0] == "RefusedError"
        for failure in (failures[0], failures[2]):
            assert failure.kinds[0] == "GroupError"
            assert "'worker1' (rank 1) failed to start" in failure.text
            assert "not on this host" in failure.text
        assert max(failure.seconds for failure in failures) < AT_ONCE
        assert workers.run(steps.is_running) == [False] * 3


def test_a_worker_whose_engine_cannot_start_is_named_to_all(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(steps.opened)

        # A transport that no host has on which these tests run.
        failures = workers.errors(steps.join, where.url, only={1: {"_transports": ["ibv"]}})

        assert "transport" in failures[1].text
        for failure in (failures[0], failures[2]):
            assert failure.kinds[0] == "GroupError"
            assert "'worker1' (rank 1) failed to start" in failure.text
            assert failures[1].text in failure.text
        assert max(failure.seconds for failure in failures) < AT_ONCE
        assert workers.run(steps.opened) == before
        assert_a_group_can_be_formed(workers, where)


def test_an_interrupt_ends_the_wait_and_the_others_are_told(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(steps.warm_up)
        before = workers.run(steps.opened)
        first, second = start_waiting(workers, where, 0, 1)

        workers[1].interrupt()

        assert second.error().kinds[0] == "KeyboardInterrupt"
        failure = first.error()
        assert failure.kinds[0] == "GroupError"
        assert "'worker1' (rank 1) gave up: KeyboardInterrupt" in failure.text
        assert workers.run(steps.opened) == before
        assert_a_group_can_be_formed(workers, where)
