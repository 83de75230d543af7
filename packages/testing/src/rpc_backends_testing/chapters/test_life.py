"""Life: workers start, stop, come back and die, and leave nothing behind."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import Worker, WorkerContext, WorkerError, Workers
from rpc_backends_testing import resource_leaks, worker_tasks
from rpc_backends_testing.checks import checking, deviate, doing, expect, fact, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import does_not_apply, in_group, requirement
from rpc_backends_testing.resource_leaks import Open
from rpc_backends_testing.subject import Subject

pytestmark = requirement("life")
dynamic = requirement("life", capability=Capability.DYNAMIC_GROUPS)
rejoin = requirement("life", capability=Capability.REJOIN)
recovery = requirement("life", capability=Capability.JOIN_RECOVERY)

#: Time limit of a test in seconds. It is short because some of these tests hang with many backends.
SHORT = 15.0
#: Time limit of a test in which several calls time out.
LONG = 20.0
#: Seconds that "soon" means at most, also on a busy machine.
SOON = 10.0
#: Timeout in seconds of a call to a dead worker.
TIMEOUT = 3.0
#: How often the test of shared memory runs, if other programs may have left what is new.
_TRIES = 3


# --- functions that are called -------------------------------------------------------------------


def name_here() -> str:
    return str(rpc.get_worker_info().name)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(pipe: str) -> None:
    """Wait until another process writes into ``pipe``, then create a file that says so."""
    with Path(pipe).open("rb") as end:
        end.read(1)
    Path(pipe + ".over").touch()


# --- steps ---------------------------------------------------------------------------------------


def call(to: str, **more: Any) -> Any:
    """Build a call that asks a worker for its name."""
    return sync(to, name_here, **more)


@checking
def know(me: WorkerContext, ranks: dict[str, int]) -> None:
    """Check that the agent knows the group ``ranks``, and that calls reach all its members."""
    members = doing(
        "get_worker_infos(), as {name: id}, sorted", lambda: in_order(worker_tasks.members(me))
    )
    expect(members).gives(in_order(ranks))
    expect(doing("get_worker_info().name", name_here)).gives(
        me.name if me.name in ranks else name_here()
    )
    for name in ranks:
        expect(call(name)).gives(name)


@checking
def call_each(me: WorkerContext, names: list[str]) -> None:
    for name in names:
        expect(call(name)).gives(name)


@checking
def fail_to_call(me: WorkerContext, names: list[str]) -> None:
    for name in names:
        expect(call(name, timeout=TIMEOUT)).raises(RuntimeError)


@checking
def call_many(me: WorkerContext, to: str, times: int) -> None:
    me.tell("begins")
    for _ in range(times):
        expect(call(to)).gives(to)


@checking
def fail_to_join(
    me: WorkerContext,
    subject: Subject,
    url: str,
    text: str = "",
    within: float = SOON,
    **arguments: Any,
) -> None:
    """Check that ``init_rpc`` raises soon and changes nothing."""
    given = {"name": me.name, "rank": me.index, "world_size": me.size, **arguments}
    written = f"init_rpc({', '.join(f'{key}={value!r}' for key, value in given.items())})"
    began = time.monotonic()
    before = is_running()
    expect(doing(written, lambda: worker_tasks.join(me, subject, url, **arguments))).raises(
        Exception, text
    )
    _check_time(written + " raises", time.monotonic() - began, within)
    expect(fact(f"RPC is running after {written} raised", is_running())).gives(before)


def forget_join_timeout(me: WorkerContext) -> None:
    del os.environ["RPC_BACKENDS_JOIN_TIMEOUT"]


@checking
def leave(me: WorkerContext, graceful: bool = True, news: bool = False, **note: str) -> None:
    """Shut down.

    :param news: report to the test that the shutdown begins.
    :param note: ``there`` is a file that must exist when the shutdown ends, ``means`` what it stands for.
    """
    if news:
        me.tell("begins")
    written = f"shutdown(graceful={graceful})"
    expect(doing(written, lambda: worker_tasks.leave(me, graceful))).gives(None)
    if note:
        there = Path(note["there"]).exists()
        expect(fact(f"{note['means']} when {written} returns", there)).gives(True)


@checking
def leave_last(me: WorkerContext, note: str, names: list[str]) -> None:
    """Call workers that are shutting down, then shut down too."""
    for _ in range(3):
        for name in names:
            expect(call(name)).gives(name)
    Path(note).touch()
    worker_tasks.leave(me)


@checking
def leave_alone(me: WorkerContext) -> None:
    """Shut down without waiting for the others."""
    began = time.monotonic()
    worker_tasks.leave(me, graceful=False)
    _check_time("shutdown(graceful=False)", time.monotonic() - began, SOON)


@checking
def call_one_that_dies(me: WorkerContext, to: str, timeout: float, within: float) -> None:
    began = time.monotonic()
    expect(sync(to, die, timeout=timeout)).raises(RuntimeError)
    _check_time("the error of a call whose callee dies", time.monotonic() - began, within)


@checking
def gather(me: WorkerContext) -> None:
    for turn in range(2):
        gathering = doing(
            f"rpc.api._all_gather({me.index + turn})",
            functools.partial(gathered, me.index + turn),
        )
        expect(gathering).gives({f"worker{index}": index + turn for index in range(me.size)})


def gathered(value: int) -> dict[str, int]:
    return in_order(rpc.api._all_gather(value))


@checking
def wait_for_all(me: WorkerContext, note: str) -> None:
    me.tell("begins")
    expect(doing("rpc.api._wait_all_workers()", rpc.api._wait_all_workers)).gives(None)
    came = Path(note).exists()
    expect(fact("the last worker has come when _wait_all_workers() returns", came)).gives(True)


@checking
def come_last(me: WorkerContext, note: str) -> None:
    call_each(me, ["worker0", "worker1"])
    Path(note).touch()
    rpc.api._wait_all_workers()


def start_a_call(me: WorkerContext, to: str, pipe: str) -> None:
    me.memory["call"] = rpc.rpc_async(to, wait_for, args=(pipe,))


def use_own_temp_folder(me: WorkerContext, folder: str) -> None:
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None


def warm_up(me: WorkerContext, subject: Subject) -> Open:
    """Load the backend, use torch a little, and return what is open before RPC starts."""
    member = rpc.BackendType[subject.name]
    rpc.backend_registry.construct_rpc_backend_options(member, **subject.options)
    torch.ones(2).add(1)
    return resource_leaks.opened()


def in_order(values: dict[str, int]) -> dict[str, int]:
    """Return ``values`` sorted by key, because comparisons look at the order."""
    return dict(sorted(values.items()))


def is_running() -> bool:
    return bool(rpc.api._is_current_rpc_agent_set())


def _check_time(what: str, took: float, within: float) -> None:
    if took > within:
        raise deviate(f"the time for {what}", f"at most {within:g} s", f"{took:.1f} s")


# --- static groups -------------------------------------------------------------------------------


@requirement("life", capability=Capability.STATIC_GROUPS)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_static_group(rpc_groups: Groups, size: int) -> None:
    """All workers of a static group know all names and ranks, and can call each other.

    The agent's `get_worker_infos()` returns them in any order; `WorkerInfo.id` is the rank.
    """
    with rpc_groups.running(size) as workers:
        workers.run(know, {f"worker{index}": index for index in range(size)})


@in_group(2)
def test_worker_info(me: WorkerContext) -> None:
    """`get_worker_info` finds a worker by name, by rank, and without an argument itself.

    The agent implements `get_worker_info()`, `get_worker_info(name)` and `get_worker_info(rank)`.
    """
    for text, who, expected in (
        ("get_worker_info()", (), ("worker0", 0)),
        ("get_worker_info('worker1')", ("worker1",), ("worker1", 1)),
        ("get_worker_info('worker0')", ("worker0",), ("worker0", 0)),
        ("get_worker_info(1)", (1,), ("worker1", 1)),
    ):
        info = expect(doing(text, functools.partial(rpc.get_worker_info, *who))).returns()
        expect(fact(f"name and id of {text}", (info.name, info.id))).gives(expected)
    by_info = rpc.get_worker_info("worker1")
    expect(sync(by_info, name_here)).gives("worker1")
    expect(sync(1, name_here)).gives("worker1")


@in_group(2)
def test_unknown_worker(me: WorkerContext) -> None:
    """It is an error to look up or to call an unknown worker.

    Programs expect a RuntimeError; torch's own suites search for "could not find destination".
    """
    expect(doing("get_worker_info('nobody')", lambda: rpc.get_worker_info("nobody"))).raises(
        RuntimeError
    )
    expect(call("nobody")).raises(RuntimeError)
    expect(sync(99, name_here)).raises(RuntimeError)
    expect(call("worker1")).gives("worker1")


def test_all_gather(rpc_groups: Groups) -> None:
    """`rpc.api._all_gather` gives each worker the values of all workers, every time it is called.

    Programs and torch's own shutdown use it. It calls Python functions on the first worker by name, and
    then on all others.
    """
    with rpc_groups.running(3) as workers:
        workers.run(gather)


def test_wait_all_workers(rpc_groups: Groups, tmp_path: Path) -> None:
    """`rpc.api._wait_all_workers` returns when the last worker has called it, and not before."""
    note = str(tmp_path / "came")
    with rpc_groups.running(3) as workers:
        waiting = [workers[index].start(wait_for_all, note) for index in (0, 1)]
        for step in waiting:
            step.news()
        workers[2].call(come_last, note)
        for step in waiting:
            step.result()


def test_duplicate_names(rpc_groups: Groups) -> None:
    """If two workers have one name, every worker of the group soon gets an error.

    The core checks names before it calls a plugin's handler. An agent that forms its group in another way
    must check itself.
    """
    with rpc_groups.workers(3, SHORT) as workers:
        url = rpc_groups.place()
        names = ("same", "same", "other")
        under_way = [
            worker.start(fail_to_join, rpc_groups.subject, url, "unique|same", name=name)
            for worker, name in zip(workers, names, strict=True)
        ]
        for step in under_way:
            step.result()


def test_second_start(rpc_groups: Groups) -> None:
    """A second `init_rpc` is refused and does not disturb the running group."""
    with rpc_groups.running(2) as workers:
        workers[0].call(
            fail_to_join, rpc_groups.subject, rpc_groups.place(), "already", world_size=1
        )
        workers.run(know, {"worker0": 0, "worker1": 1})


def test_start_again(rpc_groups: Groups) -> None:
    """After a shutdown the same processes can form a group again, with the same ranks."""
    with rpc_groups.workers(2) as workers:
        for _ in range(3):
            workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
            workers.run(know, {"worker0": 0, "worker1": 1})
            workers.run(leave)


# --- shutting down -------------------------------------------------------------------------------


def test_shutdown_serves_until_the_last_comes(rpc_groups: Groups, tmp_path: Path) -> None:
    """A worker in a graceful shutdown serves calls until the last worker shuts down.

    The agent's `join(shutdown=True)` is a barrier of the group. Requests must be served during it.
    """
    note = str(tmp_path / "last")
    means = {"there": note, "means": "the last worker has come"}
    with rpc_groups.workers(3) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        leaving = [workers[index].start(leave, news=True, **means) for index in (0, 1)]
        for step in leaving:
            step.news()
        last = workers[2].start(leave_last, note, ["worker0", "worker1"])
        for step in (last, *leaving):
            step.result()


def test_shutdown_waits_for_calls(rpc_groups: Groups, tmp_path: Path) -> None:
    """A graceful shutdown waits for running calls, on the caller and on the callee.

    The agent's `join(shutdown=True)` returns when no call is running in the whole group.
    """
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    means = {"there": pipe + ".over", "means": "a call that was under way is over"}
    with rpc_groups.workers(2) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers[0].call(start_a_call, "worker1", pipe)
        leaving = [worker.start(leave, news=True, **means) for worker in workers]
        for step in leaving:
            step.news()
        # Opened for reading and writing, so that this does not wait for the other end.
        end = os.open(pipe, os.O_RDWR)
        os.write(end, b"!")
        for step in leaving:
            step.result()
        os.close(end)


def test_ungraceful_shutdown(rpc_groups: Groups) -> None:
    """An ungraceful shutdown does not wait, and later calls to that worker are errors.

    The callers get an error at once or at the call's timeout, and can still call each other.
    """
    with rpc_groups.workers(3, LONG) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers.run(know, {f"worker{index}": index for index in range(3)})
        workers[2].call(leave_alone)
        workers.run(fail_to_call, ["worker2"], on=[0, 1])
        workers.run(call_each, ["worker0", "worker1"], on=[0, 1])
        workers.run(leave_alone, on=[0, 1])


@pytest.mark.parametrize("graceful", [True, False], ids=["graceful", "not graceful"])
def test_process_ends(rpc_groups: Groups, graceful: bool) -> None:
    """A process that has shut down RPC ends soon, with status 0.

    It must have no non-daemon thread left, and no object that crashes when the interpreter ends.
    """
    with rpc_groups.workers(2, SHORT) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers.run(call_each, ["worker0", "worker1"])
        workers.run(leave if graceful else leave_alone)
        _let_end(workers)


# --- workers that die, or never come -------------------------------------------------------------


def test_killed_peer(rpc_groups: Groups) -> None:
    """Calls to a killed worker fail at their timeout at the latest.

    This holds for a call that is running when the worker dies, and for later calls. The other workers can
    still call each other, and shut down.
    """
    with rpc_groups.workers(3, LONG) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers.run(call_each, ["worker0", "worker1"])
        workers[1].call(call_one_that_dies, "worker2", timeout=TIMEOUT, within=TIMEOUT + SOON)
        workers[2].kill()
        # worker1 is connected to worker2, worker0 may not be.
        workers.run(fail_to_call, ["worker2", "worker2"], on=[0, 1])
        workers.run(call_each, ["worker0", "worker1"], on=[0, 1])
        workers.run(leave_alone, on=[0, 1])


@requirement("life", capability=Capability.PEER_LOSS_DETECTION)
def test_killed_peer_is_noticed(rpc_groups: Groups) -> None:
    """A call to a worker that is killed fails soon, and not only at its timeout."""
    with rpc_groups.workers(2, LONG) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers[0].call(call_one_that_dies, "worker1", timeout=60, within=SOON)


@recovery
def test_missing_worker(rpc_groups: Groups) -> None:
    """If a worker never comes, the others get an error at the timeout, and can start again.

    Before the core calls a plugin's handler, it waits up to RPC_BACKENDS_JOIN_TIMEOUT seconds for the
    members of the group. A handler's own waits end at rpc_timeout.
    """
    with rpc_groups.workers(3, SHORT, env={"RPC_BACKENDS_JOIN_TIMEOUT": "2"}) as workers:
        limit = {"rpc_timeout": 2, "within": 2 + SOON}
        workers.run(fail_to_join, rpc_groups.subject, rpc_groups.place(), on=[0, 1], **limit)
        workers.run(forget_join_timeout, on=[0, 1])  # the next join may take longer
        workers.run(
            worker_tasks.join, rpc_groups.subject, rpc_groups.place(), on=[0, 1], world_size=2
        )
        workers.run(know, {"worker0": 0, "worker1": 1}, on=[0, 1])
        workers.run(leave, on=[0, 1])


# --- coming back ---------------------------------------------------------------------------------


@rejoin
def test_rejoin_with_other_ranks(rpc_groups: Groups) -> None:
    """After a shutdown processes can form a group with other ranks, names and size.

    Torch fixes a worker's id at its first group; `Member.worker_id` of the group has it.
    """
    with rpc_groups.workers(3, SHORT) as workers:
        for order in ((0, 1, 2), (2, 0, 1), (1, 0), (0, 2, 1)):
            names = [f"number{rank}" for rank in range(len(order))]
            ranks = {name: rank for rank, name in enumerate(names)}
            url = rpc_groups.place()
            joining = [
                workers[index].start(
                    worker_tasks.join,
                    rpc_groups.subject,
                    url,
                    name=names[rank],
                    rank=rank,
                    world_size=len(order),
                )
                for rank, index in enumerate(order)
            ]
            for step in joining:
                step.result()
            workers.run(know, ranks, on=order)
            workers.run(leave, on=order)


@rejoin
def test_rejoin_at_the_same_place(rpc_groups: Groups) -> None:
    """Several groups in turn can use one init method, also with new processes."""
    url = rpc_groups.place()
    with rpc_groups.workers(3, SHORT) as workers:
        for pair in ((0, 1), (1, 2), (0, 2)):
            joining = [
                workers[index].start(
                    worker_tasks.join, rpc_groups.subject, url, rank=rank, world_size=2
                )
                for rank, index in enumerate(pair)
            ]
            for step in joining:
                step.result()
            ranks = {workers[index].name: rank for rank, index in enumerate(pair)}
            workers.run(know, ranks, on=pair)
            workers.run(leave, on=pair)


# --- nothing left behind -------------------------------------------------------------------------


def test_nothing_grows(rpc_groups: Groups) -> None:
    """A third group leaves no more threads, sockets and files open than the second.

    The agent's `shutdown()` must close what it has opened, and leave nothing to the garbage collector or
    to threads.
    """
    with rpc_groups.workers(2) as workers:
        _one_group(rpc_groups, workers)
        _one_group(rpc_groups, workers)
        second = _settled(workers)
        _one_group(rpc_groups, workers)
        _expect_no_more(
            rpc_groups, workers, second, "after the third group and not after the second"
        )


@requirement("life", capability=Capability.CLEAN_SHUTDOWN)
def test_nothing_is_open(rpc_groups: Groups) -> None:
    """After a shutdown a process has nothing open that was not open before it started RPC.

    Torch's RRefContext never deletes the first agent of a process, so `shutdown()` must end its threads
    and close its files.
    """
    with rpc_groups.workers(2) as workers:
        before = workers.run(warm_up, rpc_groups.subject)
        _one_group(rpc_groups, workers)
        _expect_no_more(rpc_groups, workers, before, "after the first group and not before it")


def test_nothing_stays_on_the_machine(rpc_groups: Groups, tmp_path: Path) -> None:
    """Ended processes leave nothing in shared memory or in the temporary folder.

    Another program whose process is killed meanwhile may leave shared memory. So the test runs again if
    something is new that these workers did not have open while the group ran.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    for _ in range(_TRIES):
        before = resource_leaks.shared_memory()
        with rpc_groups.workers(2, SHORT, env={"TMPDIR": str(folder)}) as workers:
            workers.run(use_own_temp_folder, str(folder))
            workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
            workers.run(call_each, [worker.name for worker in workers])
            own = frozenset().union(*workers.run(resource_leaks.shared_memory_in_use))
            workers.run(leave)
            _let_end(workers)
        new = resource_leaks.abandoned(resource_leaks.shared_memory() - before)
        if not new or own.intersection(new):
            break
    _expect_none(f"new in {resource_leaks.SHARED_MEMORY}", new)
    _expect_none("in the temporary folder", [path.name for path in folder.iterdir()])


def _expect_none(where: str, names: list[str]) -> None:
    shown = ", ".join(sorted(names)) or "nothing"
    expect(fact(f"{where} after the processes have ended", shown)).gives("nothing")


def _one_group(groups: Groups, workers: Workers) -> None:
    """Run one group."""
    workers.run(worker_tasks.join, groups.subject, groups.place())
    workers.run(call_each, [worker.name for worker in workers])
    workers.run(leave)


def _settled(workers: Workers) -> list[Open]:
    """Return what workers have open once threads that have done their work have ended."""
    opened: list[Open] = workers.run(resource_leaks.opened)
    limit = time.monotonic() + 0.5
    while time.monotonic() < limit:
        time.sleep(0.05)
        now: list[Open] = workers.run(resource_leaks.opened)
        if any(new.threads < old.threads for new, old in zip(now, opened, strict=True)):
            limit = time.monotonic() + 0.5
        opened = now
    return opened


def _expect_no_more(groups: Groups, workers: Workers, before: list[Open], when: str) -> None:
    """Check that no worker has more open than before.

    A thread that has done its work takes a moment to end, but files are closed when `shutdown` returns.
    """
    limit = time.monotonic() + min(groups.ending, workers.seconds_left() / 2)
    for worker, then in zip(workers, before, strict=True):
        while True:
            now: Open = worker.call(resource_leaks.opened)
            only_threads = replace(now, threads=then.threads).beyond(then) == "nothing"
            if now.threads <= then.threads or not only_threads or time.monotonic() > limit:
                break
            time.sleep(0.01)
        expect(fact(f"open in {worker.name} {when}", now.beyond(then))).gives("nothing")


def _let_end(workers: Workers) -> None:
    for worker in workers:
        expect(fact(f"exit status of {worker.name} after its shutdown", _end(worker))).gives(0)


def _end(worker: Worker) -> int | str:
    try:
        return worker.end()
    except WorkerError:
        return "none: the process did not end"


# --- dynamic groups ------------------------------------------------------------------------------


def _join_dynamic(groups: Groups, worker: Worker, url: str, **arguments: Any) -> None:
    worker.call(worker_tasks.join, groups.subject, url, world_size=None, **arguments)


@dynamic
def test_dynamic_group(rpc_groups: Groups) -> None:
    """Workers join a dynamic group one by one; all know all names and can call each other.

    `world_size` is None. When the `init_rpc` of a new worker returns, the members know it and can call
    it.
    """
    with rpc_groups.workers(3, SHORT) as workers:
        url = rpc_groups.place()
        for size, worker in enumerate(workers, 1):
            _join_dynamic(rpc_groups, worker, url)
            workers.run(know, {f"worker{n}": n for n in range(size)}, on=range(size))


@dynamic
def test_dynamic_group_leaving(rpc_groups: Groups) -> None:
    """Workers leave a dynamic group one by one while the others work.

    A graceful shutdown waits for no other worker's shutdown. When it returns, the members no longer know
    the worker.
    """
    with rpc_groups.workers(4, SHORT) as workers:
        url = rpc_groups.place()
        for worker in workers:
            _join_dynamic(rpc_groups, worker, url)
        for size in (3, 2):
            working = workers[0].start(call_many, "worker1", 20)
            working.news()
            workers[size].call(leave)
            working.result()
            workers.run(know, {f"worker{n}": n for n in range(size)}, on=range(size))
        for index in (1, 0):
            workers[index].call(leave)


@dynamic
def test_dynamic_group_duplicate_name(rpc_groups: Groups) -> None:
    """A dynamic group refuses a worker whose name is taken, and goes on."""
    with rpc_groups.workers(3, SHORT) as workers:
        _refuse_duplicate(rpc_groups, workers, rpc_groups.place())


@recovery
def test_dynamic_group_join_after_a_refused_one(rpc_groups: Groups) -> None:
    """After a refused join, other workers can join the dynamic group, and so can the refused one."""
    _need_dynamic_groups(rpc_groups)
    with rpc_groups.workers(4, SHORT) as workers:
        url = rpc_groups.place()
        _refuse_duplicate(rpc_groups, workers, url)
        for index in (3, 2):
            _join_dynamic(rpc_groups, workers[index], url)
        workers.run(know, {f"worker{n}": n for n in range(4)})


def _refuse_duplicate(groups: Groups, workers: Workers, url: str) -> None:
    """Let two workers join and a third one be refused; the two go on."""
    for index in (0, 1):
        _join_dynamic(groups, workers[index], url)
    workers[2].call(fail_to_join, groups.subject, url, name="worker1", world_size=None)
    workers.run(know, {"worker0": 0, "worker1": 1}, on=[0, 1])


@dynamic
def test_dynamic_group_killed_member(rpc_groups: Groups) -> None:
    """When a member of a dynamic group is killed, calls to it fail, and the others go on."""
    with rpc_groups.workers(3, SHORT) as workers:
        url = rpc_groups.place()
        for worker in workers:
            _join_dynamic(rpc_groups, worker, url)
        workers[2].kill()
        workers.run(call_each, ["worker0", "worker1"], on=[0, 1])
        workers.run(fail_to_call, ["worker2"], on=[0, 1])
        workers.run(leave_alone, on=[0, 1])


@rejoin
@pytest.mark.parametrize("process", ["same process", "new process"])
def test_dynamic_group_rejoin(rpc_groups: Groups, process: str) -> None:
    """A worker that has left a dynamic group can come back with its name and rank."""
    _need_dynamic_groups(rpc_groups)
    with rpc_groups.workers(2, SHORT) as workers:
        url = rpc_groups.place()
        for worker in workers:
            _join_dynamic(rpc_groups, worker, url)
        ranks = {"worker0": 0, "worker1": 1}
        for _ in range(2):
            workers[1].call(leave)
            back = workers[1] if process == "same process" else workers.add()
            if back is not workers[1]:
                workers[1].end()
            _join_dynamic(rpc_groups, back, url, name="worker1", rank=1)
            workers.run(know, ranks, on=[0, back.index])
            if back is not workers[1]:
                break


@rejoin
def test_dynamic_group_in_the_place_of_a_killed_one(rpc_groups: Groups) -> None:
    """A new process can take the name and rank of a killed member of a dynamic group."""
    _need_dynamic_groups(rpc_groups)
    with rpc_groups.workers(2, SHORT) as workers:
        url = rpc_groups.place()
        for worker in workers:
            _join_dynamic(rpc_groups, worker, url)
        workers.run(call_each, ["worker0", "worker1"])
        workers[1].kill()
        _join_dynamic(rpc_groups, workers.add(), url, name="worker1", rank=1)
        workers.run(know, {"worker0": 0, "worker1": 1}, on=[0, 2])


def _need_dynamic_groups(groups: Groups) -> None:
    if Capability.DYNAMIC_GROUPS not in groups.subject.capabilities:
        does_not_apply("it also needs the capability dynamic-groups, which is not declared")
