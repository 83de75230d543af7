"""Workers of several groups with the same names are told apart."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.distributed import rpc

from rpc_backends_inspect import causes, processes, view, workers
from rpc_backends_inspect.groups import grouped
from rpc_backends_inspect.sockets import key_of_address
from rpc_backends_inspect.workers import Call, Start, WorkerState
from support import steps
from support.children import process_name
from support.command import wait_until
from support.workers import WorkerContext, Workers, suspend

ADDRESS = "env://localhost:29500"
HELD: list[Any] = []


def nap() -> None:
    time.sleep(1000)


def call_often(me: WorkerContext, to: str, times: int) -> None:
    HELD.extend(rpc.rpc_async(to, nap, timeout=0) for _ in range(times))


def state(worker: str, pid: int, key: str, **fields: Any) -> WorkerState:
    fields = {"group": ADDRESS, "host": "host", "members": {0: "worker0", 1: "worker1"}, **fields}
    return WorkerState(worker, pid, group_key=key, **fields)


def keys(states: list[WorkerState]) -> list[list[int]]:
    return [[worker.pid for worker in group.states] for group in grouped(states)]


# --- states that are made here ------------------------------------------------------------------------


def test_equal_names_at_one_address_are_two_groups() -> None:
    states = [state(f"worker{pid % 2}", pid, "ab"[pid // 2]) for pid in range(4)]
    assert keys(states) == [[0, 1], [2, 3]]


def test_a_stopped_stranger_is_no_cause() -> None:
    stranger = WorkerState("worker1", 3, "is stopped by a signal or a debugger", group_key="b")
    group, stranger_group = grouped([state("worker0", 1, "a"), stranger])
    assert causes.explain(group) == []
    assert [worker.pid for worker in stranger_group.states] == [3]


def test_a_failed_start_is_shown_to_the_group_that_lacks_it() -> None:
    failed = Start(rank=1, world_size=2, seconds=9.0, error="OSError: no")
    address = key_of_address(ADDRESS)
    late = state("worker1", 2, address, start=failed, members={})
    assert keys([state("worker0", 1, "a"), late]) == [[1, 2], [2]]
    assert keys([state("worker0", 1, "a"), state("worker1", 3, "a"), late]) == [[1, 3], [2]]


def test_the_group_says_which_worker_has_ended_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    error = "RPC to 'worker1' failed: the connection is lost: its process has ended"
    call = Call(
        *(1, 1, False, "worker1", 1, "f", "PYTHON_CALL", 0, 0, 1, 0.1, 1, 1, 60.0, "failed", error)
    )
    members = {number: f"worker{number}" for number in range(20)}
    (group,) = grouped([state("worker0", 1, "0123456789abcdef", recent=[call], members=members)])
    view.show([(group, [])], stacks=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    assert "1 worker, 1 whose process has ended: worker1, and 18 not found on this host" in text


def test_a_group_is_named_by_its_id_and_its_address() -> None:
    (group,) = grouped([state("worker0", 1, "0123456789abcdef")])
    assert group.is_called("0123")
    assert group.is_called(ADDRESS)
    assert not group.is_called("123")
    assert not group.is_called("")


def test_a_killed_process_has_its_signal() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert processes.fate(process.pid) == ""
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: processes.fate(process.pid) == "is stopped by a signal or a debugger")
        process.kill()
        wait_until(lambda: processes.fate(process.pid) == "was killed by SIGKILL")
    assert processes.fate(process.pid) == "has ended"


def test_the_name_of_a_process_may_have_any_bytes() -> None:
    with process_name(b"f\xc3"):
        assert processes.fate(os.getpid()) == ""


# --- real workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "size"),
    [("TENSORPIPE", 0), ("TENSORPIPE", None), ("ZEROMQ", 0), ("ZEROMQ", None), ("UCX", None)],
    ids=lambda value: {0: "static", None: "dynamic"}.get(value, value),
)
def test_all_workers_of_a_group_have_its_id(tmp_path: Path, backend: str, size: int | None) -> None:
    """Static groups on one address have different ids; dynamic ones are one group that goes on."""
    ids: list[str] = []
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as started:
        pids = [worker.pid for worker in started]
        for number in range(2):
            url = f"file://{tmp_path}/store{'' if size is not None else number}"
            started.run(steps.join, url, backend=backend, world_size=size)
            group_keys = {worker.group_key for worker in workers.running(pids=pids)}
            assert len(group_keys) == 1
            ids.extend(group_keys)
            started.run(steps.leave)
    assert len(set(ids)) == 2
    assert all(len(group_id) == 16 for group_id in ids)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Workers]]:
    """Two programs with workers of the same names; worker0 of the first one waits for 20 calls."""
    folder = tmp_path_factory.mktemp("programs")
    env = {"RPC_BACKENDS_RECORDER": "on"}
    with Workers(2, env=env) as first, Workers(2, env=env) as second:
        for number, program in enumerate((first, second)):
            program.run(steps.join, f"file://{folder}/{number}", backend="ZEROMQ")
        first[0].call(call_often, "worker1", 20)
        yield [first, second]
        for program in (first, second):
            for worker in program:
                worker.kill()


def pids_of(programs: list[Workers]) -> list[int]:
    return [worker.pid for program in programs for worker in program]


def test_the_output_shows_each_group_once(programs: list[Workers]) -> None:
    groups = grouped(workers.running(pids=pids_of(programs)))
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view, "console", lambda: Console(file=out, width=100))
        view.show([(group, causes.explain(group)) for group in groups], stacks=False)
    lines = out.getvalue().splitlines()
    assert sum(line.startswith("Group ") for line in lines) == 2
    # At the callee they are in several rows, once it runs some of them.
    outgoing = re.compile(rf"\bto +worker1 +20 x {re.escape(__name__)}\.nap")
    assert sum(bool(outgoing.search(line)) for line in lines) == 1
    assert any(line.startswith("2 workers have no calls in flight: worker0 ") for line in lines)


def test_one_group_can_be_chosen(programs: list[Workers]) -> None:
    (state,) = workers.running(pids=[programs[1][0].pid])
    command = [sys.executable, "-m", "rpc_backends_cli", "inspect", "--json"]
    for wanted in (state.group_key[:8], state.group):
        done = subprocess.run(
            [*command, "--group", wanted], capture_output=True, text=True, check=True
        )
        report = json.loads(done.stdout)
        assert {worker["pid"] for worker in report["workers"]} == {
            worker.pid for worker in programs[1]
        }
        (group,) = report["groups"]
        assert group["members"] == ["worker0", "worker1"]
        assert group["id"] == state.group_key


def test_a_stopped_worker_shows_its_group(programs: list[Workers]) -> None:
    """Its name and its group are known although it cannot be asked."""
    pid = programs[1][1].pid
    (before,) = workers.running(pids=[pid])
    suspend(pid)
    try:
        (stopped,) = workers.running(pids=[pid])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert stopped.problem == "is stopped by a signal or a debugger"
    assert (stopped.worker, stopped.group_key) == ("worker1", before.group_key)
