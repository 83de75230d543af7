"""Members of a group go on when its store is lost, hangs or has been overwritten by others."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import rpc

from support import steps
from support.steps import AT_ONCE, Meeting
from support.workers import WorkerContext, Workers, suspend
from support.zeromq import eventually, logged_line

BACKENDS = ["ZEROMQ", "TENSORPIPE"]
HOST, LOST = 0, 1
REMAINING = (2, 3)


def look_up(me: WorkerContext, who: str) -> tuple[str, float]:
    """Look a worker up; return the error (empty if there is none) and the seconds that it took."""
    start = time.monotonic()
    try:
        assert rpc.get_worker_info(who).name == who
    except RuntimeError as error:
        return str(error), time.monotonic() - start
    return "", time.monotonic() - start


def leave_in_time(me: WorkerContext) -> float:
    """Shut down; return the seconds that it took."""
    start = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - start


def read_members(me: WorkerContext) -> tuple[float, float]:
    """Read the list of members; return the seconds, and the growth of peak memory in MiB."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    rpc.api._get_current_rpc_agent().get_worker_infos()
    seconds = time.monotonic() - start
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024


@pytest.fixture
def where(tmp_path: Path) -> Iterator[Meeting]:
    with steps.meeting("tcp", tmp_path) as place:
        yield place


def form(workers: Any, where: Meeting, backend: str) -> None:
    """Have all workers join, the host of the store first, and call each other."""
    for worker in workers:
        worker.call(steps.join_dynamic, where.url, backend=backend)
    workers.run(steps.call_all)


def store_of(where: Meeting) -> Any:
    """Open the group's store, as any process that can reach its port can do."""
    port = int(where.url.rpartition(":")[2])
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    return dist.PrefixStore("0", dist.PrefixStore("rpc_backends", store))


def assert_all_is_well(workers: Any, members: tuple[int, ...]) -> None:
    """Check that the members can call each other, leave in time and exit with status 0."""
    for me in members:
        for peer in members:
            pid = workers[peer].pid
            assert workers[me].call(steps.call, f"worker{peer}") == f"worker{peer} {pid}"
    for seconds in workers.run(leave_in_time, on=members):
        assert seconds < 2 * AT_ONCE
    assert [workers[member].end() for member in members] == [0] * len(members)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["killed", "left"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_members_go_on_without_the_store_host(where: Meeting, backend: str, ending: str) -> None:
    with Workers(4) as workers:
        form(workers, where, backend)
        if ending == "left":
            workers[HOST].call(steps.leave)
        workers[HOST].kill()
        workers[LOST].kill()  # so that workers that have called it read the member list again

        for me in REMAINING:
            assert workers[me].call(look_up, "worker2")[0] == ""
            error, seconds = workers[me].call(look_up, "nobody")
            assert "nobody" in error
            assert seconds < AT_ONCE
            if backend == "ZEROMQ":
                assert "store" in error
                logged_line(
                    workers[me], "cannot read the member list", "calls between known members"
                )
                assert workers[me].output.count("cannot read the member list") == 1
        assert_all_is_well(workers, REMAINING)
        for me in REMAINING:
            # Torch's C++ backtrace. The host may end during a request; then no further one is made.
            assert workers[me].output.count("Exception raised from") <= 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hanging_store_delays_no_member(where: Meeting, backend: str) -> None:
    with Workers(4) as workers:
        workers.run(steps.shorten_waits)
        form(workers, where, backend)
        suspend(workers[HOST].pid)
        try:
            workers[LOST].kill()
            for me in REMAINING:
                error, seconds = workers[me].call(look_up, "nobody")
                assert "nobody" in error
                assert seconds < AT_ONCE
            assert_all_is_well(workers, REMAINING)
        finally:
            os.kill(workers[HOST].pid, signal.SIGCONT)


def test_a_store_is_read_again_once_it_answers(where: Meeting) -> None:
    with Workers(3) as workers:
        workers.run(steps.shorten_waits)
        for worker in (workers[0], workers[1]):
            worker.call(steps.join_dynamic, where.url, backend="ZEROMQ")
        suspend(workers[HOST].pid)
        try:
            workers[1].call(look_up, "worker2")
        finally:
            os.kill(workers[HOST].pid, signal.SIGCONT)

        workers[2].call(steps.join_dynamic, where.url, backend="ZEROMQ")

        eventually(lambda: workers[1].call(look_up, "worker2")[0] == "", lambda: "it is a member")


@pytest.mark.parametrize("join", [steps.join, steps.join_dynamic])
def test_joining_a_suspended_store_times_out_and_names_it(where: Meeting, join: Any) -> None:
    with Workers(2) as workers:
        workers.run(steps.shorten_waits)
        workers[1].call(steps.limit_join, 2)
        first = workers[HOST].start(join, where.url)
        if join is steps.join:
            store_of(where)  # waits until the host has opened it
        else:
            first.result()
        suspend(workers[HOST].pid)
        try:
            failure = workers[1].start(join, where.url).error()
        finally:
            os.kill(workers[HOST].pid, signal.SIGCONT)

        assert failure.kinds[0] == "GroupTimeoutError"
        assert "'worker1' (rank 1)" in failure.text
        assert where.url in failure.text
        assert "waited 2 s" in failure.text
        assert "suspended" in failure.text
        assert failure.seconds < AT_ONCE
        assert not workers[1].call(steps.is_running)


@pytest.mark.slow
def test_a_store_suspended_while_joining_is_an_error(where: Meeting) -> None:
    with Workers(2) as workers:
        workers.run(steps.shorten_waits)
        workers[HOST].call(steps.limit_join, 6)
        workers[1].call(steps.limit_join, 3)
        waiting = []
        for worker in workers:  # they wait for a third worker, which never starts
            waiting.append(worker.start(steps.join_and_tell, where.url, world_size=3))
            assert waiting[-1].news() == "waiting"
        suspend(workers[HOST].pid)
        try:
            failure = waiting[1].error()
        finally:
            os.kill(workers[HOST].pid, signal.SIGCONT)

        assert failure.kinds[0] == "StoreError"
        assert (
            f"store at {where.url.removeprefix('tcp://')} has not answered for 4 s" in failure.text
        )
        assert failure.seconds < 2 * AT_ONCE
        assert waiting[0].error().kinds[0] == "GroupTimeoutError"


@pytest.mark.parametrize("text", ["none", "3000000", str(10**17), "-7", "9" * 400])
def test_an_invalid_record_count_costs_no_time_or_memory(where: Meeting, text: str) -> None:
    with Workers(3) as workers:
        form(workers, where, "ZEROMQ")
        store_of(where).set("records", text)

        for _ in range(2):
            for seconds, mebibytes in workers.run(read_members):
                assert seconds < AT_ONCE / 2
                assert mebibytes < 50
        logged_line(workers[0], "'records'", "start again with a store that only these workers use")
        workers[2].kill()
        assert_all_is_well(workers, (0, 1))


NO_DEVICES = {"name": "w9", "accelerator": None, "count": 0, "maps": {}, "devices": []}


def member_list(host: str, process: object) -> str:
    """Return a list with one member that has this host and this process."""
    peer = ["w9", 9, 9, NO_DEVICES, "uv://127.0.0.1:1", [host, 1], process]
    return json.dumps({"key": "ab" * 32, "version": 9, "used": [9], "peers": [peer]})


@pytest.mark.parametrize(
    "text",
    [
        "none",
        '{"key": "00", "peers": [[]]}',
        "[" * 100_000,
        member_list("no-such-host.invalid", []),
        member_list("127.0.0.1", [["nested"]]),
    ],
    ids=["text", "fields", "depth", "a name for an address", "no process"],
)
def test_an_invalid_member_list_fails_only_the_joiner(where: Meeting, text: str) -> None:
    with Workers(3) as workers:
        for worker in (workers[0], workers[1]):
            worker.call(steps.join_dynamic, where.url)
        store_of(where).set("members", text)

        error = workers[2].start(steps.join_dynamic, where.url).error()
        assert "'members'" in error.text
        assert "start again with a store that only these workers use" in error.text
        assert_all_is_well(workers, (0, 1))


def test_a_static_group_without_its_store_fails_to_leave(where: Meeting) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, where.url, backend="ZEROMQ")
        workers.run(steps.call_all)
        workers[HOST].kill()

        start = time.monotonic()
        workers[1].start(leave_in_time).error()
        assert time.monotonic() - start < AT_ONCE
        assert workers[1].end() == 0
