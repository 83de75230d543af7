"""Dynamic groups: workers join, leave and rejoin while the others work."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.command import wait_until
from support.steps import AT_ONCE, Meeting, join_dynamic
from support.workers import Done, Failure, WorkerContext, Workers, suspend


def everybody(*names: str) -> dict[str, str]:
    """Return the result of `steps.call_all` if each of ``names`` returns its own name."""
    return {name: name for name in sorted(names)}


def assert_all_call_all(workers: Workers, *names: str, on: list[int] | None = None) -> None:
    """Check that the members are ``names``, that each calls all, and that a gather includes all."""
    results = workers.run(steps.call_all, on=on)
    assert results == [everybody(*names)] * len(names)
    gathered = workers.run(steps.gather, "here", on=on)
    assert gathered == [dict.fromkeys(names, "here")] * len(names)


def test_workers_join_one_after_the_other_and_call_each_other(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        for number in range(3):
            workers[number].call(join_dynamic, where.url)
            present = [f"worker{index}" for index in range(number + 1)]
            assert_all_call_all(workers, *present, on=list(range(number + 1)))

        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0, 0]


def test_six_workers_join_at_once(where: Meeting) -> None:
    with Workers(6, env=where.env) as workers:
        workers.run(join_dynamic, where.url)

        assert_all_call_all(workers, *(f"worker{index}" for index in range(6)))

        workers.run(steps.leave)


def test_others_go_on_when_several_workers_leave_at_once(where: Meeting) -> None:
    with Workers(5, env=where.env) as workers:
        workers.run(join_dynamic, where.url)

        workers.run(steps.leave, on=[1, 3, 4])

        assert workers[0].call(steps.members) == {"worker0": 0, "worker2": 2}
        assert_all_call_all(workers, "worker0", "worker2", on=[0, 2])
        workers.run(steps.leave, on=[0, 2])


def test_workers_leave_while_others_join(where: Meeting) -> None:
    with Workers(6, env=where.env) as workers:
        workers.run(join_dynamic, where.url, on=[0, 1, 2])

        coming = [workers[index].start(join_dynamic, where.url) for index in (3, 4, 5)]
        going = [workers[index].start(steps.leave) for index in (1, 2)]
        for step in [*coming, *going]:
            step.result()

        assert_all_call_all(workers, "worker0", "worker3", "worker4", "worker5", on=[0, 3, 4, 5])
        workers.run(steps.leave, on=[0, 3, 4, 5])


@pytest.mark.parametrize(
    "again",
    [{}, {"rank": 9}, {"name": "other"}, {"name": "other", "rank": 9}],
    ids=["same rank and name", "another rank", "another name", "another rank and name"],
)
@pytest.mark.parametrize("process", ["same process", "new process"])
def test_a_worker_that_left_rejoins(where: Meeting, process: str, again: dict[str, Any]) -> None:
    """With stock torch the worker's calls fail on broken pipes ("eof"), or the others do not find it."""
    name = again.get("name", "worker1")
    rank = again.get("rank", 1)
    with Workers(3, env=where.env) as workers:
        workers.run(join_dynamic, where.url)
        assert_all_call_all(workers, "worker0", "worker1", "worker2")
        workers[1].call(steps.leave)
        assert_all_call_all(workers, "worker0", "worker2", on=[0, 2])

        back = workers[1] if process == "same process" else workers.add()
        back.call(join_dynamic, where.url, **{"rank": 1, "name": "worker1", **again})

        living = [0, back.index, 2]
        members = {"worker0": 0, name: rank, "worker2": 2}
        assert workers.run(steps.members, on=living) == [members] * 3
        assert_all_call_all(workers, "worker0", name, "worker2", on=living)
        # Calls by rank work as well, in both directions.
        assert workers[0].call(steps.call, rank).split()[0] == name
        assert back.call(steps.call, 2).split()[0] == "worker2"
        workers.run(steps.leave, on=living)


def test_rrefs_and_autograd_work_with_a_worker_that_was_replaced(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)
        assert workers[0].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        assert workers[1].call(steps.differentiate, "worker0") == [3.0, 3.0]
        workers[1].call(steps.leave)
        new = workers.add()
        new.call(join_dynamic, url, name="worker1", rank=1)

        assert workers[0].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        assert workers[0].call(steps.differentiate, "worker1") == [3.0, 3.0]
        assert new.call(steps.use_rref, "worker0") == [2.0, 2.0, 2.0]
        assert new.call(steps.differentiate, "worker0") == [3.0, 3.0]
        workers.run(steps.leave, on=[0, 2])


def test_a_worker_info_is_valid_in_another_process(url: str) -> None:
    """This includes the ``WorkerInfo`` of a worker that has rejoined."""
    with Workers(3) as workers:
        workers.run(join_dynamic, url)
        workers[1].call(steps.leave)
        workers[1].call(join_dynamic, url)

        assert workers[0].call(call_through, "worker2", "worker1").split()[0] == "worker1"
        assert workers[1].call(call_through, "worker2", "worker1").split()[0] == "worker1"
        workers.run(steps.leave)


def call_through(me: WorkerContext, relay: str, to: str) -> str:
    return str(rpc.rpc_sync(relay, pass_on, args=(rpc.get_worker_info(to),)))


def pass_on(to: rpc.WorkerInfo) -> str:
    return str(rpc.rpc_sync(to, steps.who))


def test_a_leaving_worker_finishes_the_requests_it_serves(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)
        calling = workers[0].start(call_and_tell, "worker1")
        assert calling.news() == "serving"

        workers[1].call(steps.leave)

        assert calling.result() == "served"
        workers[0].call(steps.leave)


def call_and_tell(me: WorkerContext, to: str) -> str:
    future = rpc.rpc_async(to, serve_slowly, args=(me.name,))
    assert SERVING.wait(30)
    me.tell("serving")
    return str(future.wait())


SERVING = threading.Event()


def now_serving() -> None:
    SERVING.set()


def serve_slowly(caller: str) -> str:
    rpc.rpc_sync(caller, now_serving)
    agent = rpc.api._get_current_rpc_agent()
    wait_until(lambda: not agent.is_listed)  # until this worker leaves
    return "served"


def test_a_leaving_worker_gets_its_pending_responses(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)

        assert workers[1].call(ask_and_leave, "worker0") == "served"

        workers[0].call(steps.leave)


def ask_and_leave(me: WorkerContext, to: str) -> str:
    future = rpc.rpc_async(to, answer_slowly)
    result = future.then(lambda done: done.value())
    rpc.shutdown()
    return str(result.wait())


def answer_slowly() -> str:
    agent = rpc.api._get_current_rpc_agent()
    wait_until(lambda: len(agent.get_worker_infos()) == 1)  # until the caller leaves
    return "served"


def test_a_worker_leaves_and_rejoins_many_times(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        workers[0].call(join_dynamic, where.url)
        for _ in range(5):
            workers[1].call(join_dynamic, where.url)
            assert_all_call_all(workers, "worker0", "worker1")
            workers[1].call(steps.leave)
        workers[0].call(steps.leave)


def test_the_first_worker_may_leave_and_rejoin(where: Meeting) -> None:
    """The first worker hosts the TCP store."""
    with Workers(3, env=where.env) as workers:
        workers.run(join_dynamic, where.url, on=[0, 1])
        workers[0].call(steps.leave)

        workers[2].call(join_dynamic, where.url)
        assert_all_call_all(workers, "worker1", "worker2", on=[1, 2])
        workers[0].call(join_dynamic, where.url)

        assert_all_call_all(workers, "worker0", "worker1", "worker2")
        workers.run(steps.leave)


def test_the_first_worker_may_rejoin_with_another_rank(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.run(join_dynamic, where.url, on=[0, 1])
        workers[0].call(steps.leave)

        workers[0].call(join_dynamic, where.url, rank=5)

        assert_all_call_all(workers, "worker0", "worker1", on=[0, 1])
        workers[2].call(join_dynamic, where.url)
        assert_all_call_all(workers, "worker0", "worker1", "worker2")
        workers.run(steps.leave)


def test_a_new_group_can_form_after_all_have_left(where: Meeting) -> None:
    with Workers(2, env=where.env) as workers:
        for _ in range(3):
            workers.run(join_dynamic, where.url)
            assert_all_call_all(workers, "worker0", "worker1")
            workers.run(steps.leave)


def hide_process(me: WorkerContext) -> None:
    """Make this worker look like one on another host: no other worker can see when its process ends."""
    core = sys.modules["rpc_backends_core._group.processes"]
    core._BOOT = Path("/no such host")  # type: ignore[attr-defined]


def listener(me: WorkerContext) -> tuple[str, int]:
    """Return where this worker listens for membership updates and liveness questions."""
    address: tuple[str, int] = rpc.api._get_current_rpc_agent().listener.address
    return address


@pytest.mark.parametrize("seen", ["process", "port"])
def test_the_next_joiner_removes_a_killed_member(url: str, seen: str) -> None:
    """With stock torch the killed member stays, and joiners fail when they connect to its address."""
    with Workers(4) as workers:
        if seen == "port":
            workers.run(hide_process)
        workers.run(join_dynamic, url, on=[0, 1, 2])
        workers[1].kill()

        outcome = workers[3].start(join_dynamic, url)
        outcome.result()

        assert outcome.outcome().seconds < AT_ONCE
        assert workers.run(steps.members) == [{"worker0": 0, "worker2": 2, "worker3": 3}] * 3
        assert_all_call_all(workers, "worker0", "worker2", "worker3")
        workers.run(steps.leave)


def test_a_group_can_restart_after_all_members_were_killed(tmp_path: Path) -> None:
    with steps.meeting("agent", tmp_path) as where, Workers(3, env=where.env) as workers:
        workers.run(join_dynamic, where.url)
        for worker in workers:
            worker.kill()
        for _ in range(2):
            workers.add()

        workers.run(join_dynamic, where.url, only={3: {"name": "worker0", "rank": 0}})

        assert_all_call_all(workers, "worker0", "worker4", on=[3, 4])
        workers.run(steps.leave)


def test_a_killed_member_can_be_replaced_with_its_name_and_rank(url: str) -> None:
    with Workers(3) as workers:
        workers.run(join_dynamic, url)
        workers[1].kill()

        new = workers.add()
        new.call(join_dynamic, url, name="worker1", rank=1)

        assert workers.run(steps.members) == [{"worker0": 0, "worker1": 1, "worker2": 2}] * 3
        assert_all_call_all(workers, "worker0", "worker1", "worker2")
        workers.run(steps.leave)


def test_nothing_connects_to_the_port_of_a_killed_member(url: str) -> None:
    """A new agent may have the port. TensorPipe ends its process if a message there is not its own."""
    with Workers(5) as workers:
        workers.run(join_dynamic, url, on=[0, 1, 2])
        ports = [workers[index].call(listener) for index in (1, 2)]
        for index in (1, 2):
            workers[index].kill()
        with contextlib.ExitStack() as stack:
            new_owners = [stack.enter_context(socket.create_server(port)) for port in ports]

            workers[3].call(join_dynamic, url)  # the two are still on the list
            workers[4].call(join_dynamic, url, name="worker1", rank=1)
            assert workers[0].call(steps.members) == {"worker0": 0, "worker3": 3, "worker1": 1}
            workers.run(steps.leave)

            for owner in new_owners:
                owner.setblocking(False)
                with pytest.raises(BlockingIOError):  # no connection waits for accept()
                    owner.accept()


@pytest.mark.parametrize("seen", ["process", "port"])
def test_the_list_of_members_omits_a_killed_one(url: str, seen: str) -> None:
    with Workers(3) as workers:
        if seen == "port":
            workers.run(hide_process)
        workers.run(join_dynamic, url)
        workers[1].kill()

        wait_until(lambda: workers[0].call(steps.members) == {"worker0": 0, "worker2": 2}, 10)

        wait_until(lambda: workers[2].call(steps.members) == {"worker0": 0, "worker2": 2}, 10)
        workers.run(steps.leave)


def test_leaving_does_not_wait_for_a_killed_member(url: str) -> None:
    with Workers(3) as workers:
        workers.run(join_dynamic, url)
        workers[1].kill()

        for worker in (workers[0], workers[2]):
            step = worker.start(steps.leave)
            step.result()
            assert step.outcome().seconds < AT_ONCE

        assert workers.run(steps.is_running) == [False, False]


@pytest.mark.parametrize(
    ("taken", "text"),
    [({"name": "worker0"}, "name worker0 is not unique"), ({"rank": 0}, "rank 0 is not unique")],
    ids=["name", "rank"],
)
def test_a_joiner_with_a_taken_name_or_rank_is_refused(
    url: str, taken: dict[str, Any], text: str
) -> None:
    with Workers(3) as workers:
        workers.run(join_dynamic, url, on=[0, 1])

        failure = workers[2].start(join_dynamic, url, **taken).error()

        assert failure.kinds[0] == "RuntimeError"
        assert text in failure.text
        assert failure.seconds < AT_ONCE
        assert not workers[2].call(steps.is_running)
        assert_all_call_all(workers, "worker0", "worker1", on=[0, 1])
        # The failed join blocks no other worker, and the same process may try again.
        workers[2].call(join_dynamic, url)
        assert_all_call_all(workers, "worker0", "worker1", "worker2")
        workers.run(steps.leave)


def test_only_one_of_several_joiners_with_one_name_succeeds(url: str) -> None:
    with Workers(4) as workers:
        workers[0].call(join_dynamic, url)

        steps_under_way = [
            workers[index].start(join_dynamic, url, name="same") for index in (1, 2, 3)
        ]
        outcomes = [step.outcome() for step in steps_under_way]

        refused = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        assert len(refused) == 2
        assert all("name same is not unique" in outcome.text for outcome in refused)
        running = [
            0,
            1 + next(i for i, outcome in enumerate(outcomes) if isinstance(outcome, Done)),
        ]
        assert_all_call_all(workers, "worker0", "same", on=running)
        workers.run(steps.leave, on=running)


@pytest.mark.slow
def test_workers_that_keep_joining_and_leaving_end_as_one_group(where: Meeting) -> None:
    with Workers(5, env=where.env, seconds=120) as workers:
        workers[0].call(join_dynamic, where.url)

        workers.run(come_and_go, where.url, 5, on=[1, 2, 3, 4])

        assert_all_call_all(workers, *(f"worker{index}" for index in range(5)))
        workers.run(steps.leave)


def come_and_go(me: WorkerContext, url: str, times: int) -> None:
    for number in range(times):
        join_dynamic(me, url)
        assert rpc.rpc_sync("worker0", steps.who).split()[0] == "worker0"
        if number < times - 1:
            rpc.shutdown()


def test_members_go_on_and_leave_after_the_store_host_is_killed(tmp_path: Path) -> None:
    with steps.meeting("tcp", tmp_path) as where, Workers(3, env=where.env) as workers:
        workers.run(join_dynamic, where.url)
        workers[0].kill()

        assert workers[1].call(steps.call, "worker2").split()[0] == "worker2"
        for index in (1, 2):
            step = workers[index].start(steps.leave)
            step.outcome()
            assert step.outcome().seconds < AT_ONCE
        assert workers.run(steps.is_running) == [False, False]


def test_a_worker_killed_while_joining_blocks_no_other(url: str) -> None:
    """With stock torch the killed worker keeps the token: later joiners wait for the store's timeout."""
    with Workers(3) as workers:
        workers[0].call(join_dynamic, url)
        joining = workers[1].start(join_and_stop_before_telling, url)
        assert joining.news() == "on the list"
        workers[1].kill()

        step = workers[2].start(join_dynamic, url)
        step.result()

        assert step.outcome().seconds < AT_ONCE
        assert_all_call_all(workers, "worker0", "worker2", on=[0, 2])
        workers.run(steps.leave)


def join_and_stop_before_telling(me: WorkerContext, url: str) -> None:
    from rpc_backend_tensorpipe import dynamic_group

    def stop(*args: Any) -> None:
        me.tell("on the list")
        threading.Event().wait()

    dynamic_group._introduce = stop
    join_dynamic(me, url)


def test_a_worker_that_fails_while_joining_is_not_a_member(url: str) -> None:
    with Workers(3) as workers:
        workers[0].call(join_dynamic, url)

        failure = workers[1].start(join_and_fail_after_telling, url).error()

        assert failure.text == "failed on purpose"
        workers[2].call(join_dynamic, url)
        assert_all_call_all(workers, "worker0", "worker2", on=[0, 2])
        workers.run(steps.leave, on=[0, 2])


def join_and_fail_after_telling(me: WorkerContext, url: str) -> None:
    from rpc_backend_tensorpipe import dynamic_group

    introduce = dynamic_group._introduce

    def fail(*args: Any) -> None:
        introduce(*args)
        raise OSError("failed on purpose")

    dynamic_group._introduce = fail
    join_dynamic(me, url)


@pytest.mark.parametrize("name", ["with-a-dash", "with:colons::", "n" * 127, "-"])
def test_names_may_have_every_character_that_torch_documents(url: str, name: str) -> None:
    """Stock torch keeps members as ``name-rank,`` and hangs when a name has a dash."""
    with Workers(3) as workers:
        workers[0].call(join_dynamic, url)
        workers[1].call(join_dynamic, url, name=name)
        workers[2].call(join_dynamic, url)

        assert_all_call_all(workers, "worker0", name, "worker2")

        workers[1].call(steps.leave)
        workers[1].call(join_dynamic, url, name=name)
        assert_all_call_all(workers, "worker0", name, "worker2")
        workers.run(steps.leave)


def test_a_timeout_of_zero_means_never(url: str) -> None:
    with Workers(2) as workers:
        workers[0].call(join_dynamic, url, rpc_timeout=0)
        workers[1].call(join_dynamic, url, rpc_timeout=0)

        assert_all_call_all(workers, "worker0", "worker1")

        workers.run(steps.leave)


@pytest.mark.slow
@pytest.mark.parametrize("rpc_timeout", [0, 3600])
def test_a_suspended_member_holds_up_nobody_who_joins_or_leaves(url: str, rpc_timeout: int) -> None:
    """However long calls may take: here a worker waits a second at most."""
    with Workers(3) as workers:
        workers[0].call(join_dynamic, url)
        workers[1].call(join_impatiently, url, rpc_timeout)
        suspend(workers[0].pid)
        workers[2].call(join_impatiently, url, rpc_timeout)
        workers[2].call(steps.leave)
        workers[1].call(steps.leave)


def join_impatiently(me: WorkerContext, url: str, rpc_timeout: int) -> None:
    from rpc_backend_tensorpipe import dynamic_group

    dynamic_group._LONGEST_WAIT = 1.0
    join_dynamic(me, url, rpc_timeout=rpc_timeout)


def test_a_call_to_a_worker_that_left_fails_at_once(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)
        workers[1].call(steps.leave)

        for gone in ("worker1", 1):
            failure = workers[0].start(steps.call, gone).error()
            assert failure.kinds[0] == "RuntimeError"
            assert "could not find destination" in failure.text
            assert failure.seconds < AT_ONCE
        workers[0].call(steps.leave)


def test_rrefs_and_distributed_autograd_work(url: str) -> None:
    with Workers(2) as workers:
        workers[0].call(join_dynamic, url)
        workers[1].call(join_dynamic, url)

        assert workers[0].call(steps.use_rref, "worker1") == [2.0, 2.0, 2.0]
        assert workers[1].call(steps.differentiate, "worker0") == [3.0, 3.0]

        workers.run(steps.leave)


def test_a_worker_may_leave_while_others_hold_rrefs_to_its_values(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)
        workers[0].call(keep_rref, "worker1")

        for worker in (workers[1], workers[0]):
            step = worker.start(steps.leave)
            step.result()
            assert step.outcome().seconds < AT_ONCE
        assert [worker.end() for worker in workers] == [0, 0]


def keep_rref(me: WorkerContext, to: str) -> None:
    me.memory["rref"] = rpc.remote(to, torch.full, args=((3,), 1.0))
    me.memory["rref"].to_here()


def test_a_shutdown_that_is_not_graceful_does_not_wait(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_dynamic, url)

        workers[0].call(steps.leave, False)
        workers[1].call(steps.leave, False)

        assert [worker.end() for worker in workers] == [0, 0]


def listed(me: WorkerContext) -> list[str]:
    """Return the names on the list in the store."""
    return sorted(rpc.api._get_current_rpc_agent().membership.remove([]).peers)


def test_a_shutdown_that_is_not_graceful_removes_the_member(url: str) -> None:
    """If the worker stayed on the list, another process could later get the port of its address."""
    with Workers(2) as workers:
        workers.run(join_dynamic, url)
        assert workers[0].call(listed) == ["worker0", "worker1"]

        workers[1].call(steps.leave, False)

        assert workers[0].call(listed) == ["worker0"]


@pytest.mark.parametrize("first", ["static", "dynamic"])
def test_static_and_dynamic_members_do_not_mix(where: Meeting, first: str) -> None:
    with Workers(3, env=where.env) as workers:
        if first == "static":
            workers.run(steps.join, where.url, world_size=2, on=[0, 1])
            step = workers[2].start(join_dynamic, where.url)
        else:
            workers.run(join_dynamic, where.url, on=[0, 1])
            step = workers[2].start(steps.join, where.url, world_size=3)

        failure = step.error()

        assert (
            "RPC group mixes statically and dynamically initialized members which is not supported."
            in failure.text
        )
        assert failure.seconds < AT_ONCE
        assert workers.run(steps.call_all, on=[0, 1]) == [everybody("worker0", "worker1")] * 2
        workers.run(steps.leave, on=[0, 1])
