"""`rpc-backends inspect --watch`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from rich import live
from rich.console import Console
from torch.distributed import rpc

from rpc_backends_inspect import sockets, watching, workers
from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

STOP = threading.Event()


def call_until_stopped(me: WorkerContext, to: str) -> None:
    def run() -> None:
        while not STOP.is_set():
            rpc.rpc_sync(to, torch.add, (torch.ones(100), 1))

    threading.Thread(target=run, daemon=True).start()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers, one of which calls the other all the time."""
    folder = tmp_path_factory.mktemp("watch")
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "1000"}) as started:
        started.run(steps.join, f"file://{folder}/store", backend="ZEROMQ")
        started[0].call(call_until_stopped, "worker1")
        yield started
        for worker in started:
            worker.kill()


def command(workers: Workers, *arguments: str) -> list[str]:
    pids = [text for worker in workers for text in ("--pid", str(worker.pid))]
    return [sys.executable, "-m", "rpc_backends_cli", "inspect", "--watch", *pids, *arguments]


def test_rates_and_times_are_those_of_the_calls(busy: Workers) -> None:
    command_ = command(busy, "--json", "--interval", "0.5")
    with subprocess.Popen(command_, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # On a busy machine, hardly any call may end in an interval.
        rows = next(
            rows
            for line in process.stdout
            if (rows := json.loads(line)["rows"]) and rows[0]["calls"] > 10
        )
        process.send_signal(signal.SIGINT)
        process.stdout.close()
    (row,) = rows
    assert (row["worker"], row["peer"], row["function"]) == (
        "worker0",
        "worker1",
        "torch.ops.aten.add",
    )
    assert row["bytes"] / row["calls"] > 400  # each call sends and gets tensors of 400 bytes
    assert 0 < row["p50"] <= row["p90"] <= row["p99"] < 60
    assert row["calls"] * row["p50"] < 2  # calls are made one at a time, and times are in seconds
    assert row["failed"] == 0


def test_a_frame_shows_the_calls(busy: Workers) -> None:
    meter = watching.Meter()
    pids = [worker.pid for worker in busy]
    meter.rows(workers.running(pids=pids, last=True))
    rows: list[watching.Row] = []
    while not rows:
        states = workers.running(pids=pids, last=True)
        rows = meter.rows(states)
    out = io.StringIO()
    Console(file=out, width=80).print(watching.frame(states, rows, 1.0))
    head, titles, line, *_ = out.getvalue().splitlines()
    assert head.startswith("2 workers, ")
    assert titles.split()[-6:] == ["calls/s", "bytes/s", "p50", "p99", "failed", "open"]
    assert line.split()[:3] == ["worker0", "worker1", "add"]


def test_long_names_leave_room_for_all_numbers() -> None:
    row = watching.Row(
        *("a", "a-worker-with-a-long-name", "another-with-a-long-name"),
        f"program.Learner.{'add' * 30}",
        *(12345, 1e9, 0.001, 0.02, 1.5, 345, 678),
    )
    out = io.StringIO()
    Console(file=out, width=80).print(watching.frame([], [row], 1.0))
    _, titles, line = out.getvalue().splitlines()
    assert titles.split()[-6:] == ["calls/s", "bytes/s", "p50", "p99", "failed", "open"]
    assert line.split()[-2:] == ["345", "678"]
    assert "Learn" in line


def row(function: str, calls: float) -> watching.Row:
    return watching.Row("a", "worker0", "worker1", function, calls, *(1.0,) * 4, 0, 0)


def functions(rows: list[watching.Row]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80).print(watching.frame([], rows, 1.0))
    return [line.split()[2] for line in out.getvalue().splitlines()[2:]]


def test_rows_keep_their_order_when_rates_change() -> None:
    rates = [("a.first", 3.0), ("a.second", 5.0)]
    for given in (rates, rates[::-1]):
        assert functions([row(*each) for each in given]) == ["first", "second"]


def test_messages_of_torch_take_no_rows() -> None:
    assert functions([row("RREF_CHILD_ACCEPT", 9.0), row("a.add", 1.0)]) == ["add"]


def test_a_worker_that_has_ended_is_shown() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    meter = watching.Meter()
    states = [workers.WorkerState("worker1", process.pid, group_key="a")]
    assert meter.with_ended(states) == states
    meter.rows(states)
    (ended,) = meter.with_ended([])
    assert (ended.worker, ended.problem, ended.group_key) == ("worker1", "has ended", "a")


def test_it_ends_on_ctrl_c(busy: Workers) -> None:
    master, slave = pty.openpty()
    try:
        with subprocess.Popen(command(busy), stdout=slave, stderr=slave) as process:
            os.close(slave)  # if the command fails, reading ends with an error
            shown = b""
            while b"worker1" not in shown:
                shown += os.read(master, 4096)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the other end is closed
                while more := os.read(master, 4096):
                    shown += more
            assert process.wait() == 0, shown.decode()
    finally:
        os.close(master)


def watch_interrupted(at: int) -> tuple[bool, str]:
    """Watch with Ctrl-C at an event of the profiler; return if it came, and the output."""
    before = signal.getsignal(signal.SIGINT)
    of_the_watch = {watching.__file__, threading.__file__, live.__file__}
    events = reads = 0
    out = io.StringIO()

    def interrupt() -> None:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

    def on_event(frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal events
        if frame.f_code.co_filename in of_the_watch and signal.getsignal(signal.SIGINT) != before:
            events += 1
            if events == at:
                interrupt()

    def read() -> list[workers.WorkerState]:
        nonlocal reads
        reads += 1
        if reads == 3:
            interrupt()
        return []

    terminal = Console(file=out, force_terminal=True)
    with unittest.mock.patch.object(watching, "console", lambda: terminal):
        sys.setprofile(on_event)
        watching.watch(read, 0.0)
    return events == at, out.getvalue()


def interrupt_each_event(_me: WorkerContext) -> tuple[int, list[int]]:
    """Return how many events a watch has, and those at which Ctrl-C leaves the cursor hidden."""
    hidden, events, came = [], 0, True
    while came:
        came, shown = watch_interrupted(events + 1)
        if shown.rfind("\x1b[?25l") > shown.rfind("\x1b[?25h"):
            hidden.append(events + 1)
        events += came
    return events, hidden


def test_ctrl_c_at_any_moment_ends_it_and_shows_the_cursor() -> None:
    with Workers(1, seconds=120) as alone:
        events, hidden = alone[0].call(interrupt_each_event)
    assert events > 20
    assert hidden == []


def test_it_needs_a_terminal_or_json(busy: Workers, tmp_path: Path) -> None:
    done = subprocess.run(command(busy), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "--watch needs a terminal, and stdout is not one; with --json" in " ".join(
        done.stderr.split()
    )


def test_asking_for_stacks_does_a_busy_worker_no_harm(busy: Workers) -> None:
    """The stacks are read while the threads run. A careless reader could crash the process."""
    pids = [worker.pid for worker in busy]
    for _ in range(30):
        states = [stacks(answer) for answer in sockets.connect_all(30) if answer.pid in pids]
        assert len(states) == 2
        assert all(states)
    assert [state.problem for state in workers.running(pids=pids)] == ["", ""]


def stacks(worker: sockets.WorkerSocket) -> bytes:
    """Return the last part of a worker's state, without the thousands of calls before it."""
    with worker.connection as connection:
        connection.sendall(b"a")
        with connection.makefile("rb") as stream:
            return stream.read().partition(b'"stacks"')[2]
