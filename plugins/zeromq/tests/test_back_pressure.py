"""A peer that does not read: `max_unanswered_bytes` bounds the memory for it, and no call is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, join, metric, run_counted, runs

pytestmark = pytest.mark.slow

MIB = 1 << 20
SIZE = MIB  # of the tensor of each call
LIMIT = 16 * MIB
CALLS = 160
#: Bytes beyond the limit that a sender may take: what is being encrypted, and what the allocator keeps.
SLACK = 48 * MIB


def send_all(me: WorkerContext, to: str, folder: str) -> None:
    """Make all calls, each with its own tensor, and wait for the replies."""
    progress = Path(folder) / "sent"
    futures = []
    for number in range(CALLS):
        progress.write_text(str(number))
        tensor = torch.full((SIZE,), number % 256, dtype=torch.uint8)
        futures.append(rpc.rpc_async(to, run_counted, args=(str(number), tensor), timeout=0))
        del tensor
    progress.write_text(str(CALLS))
    assert [future.wait() for future in futures] == list(map(str, range(CALLS)))


def resident(pid: int, what: str) -> int:
    """Return a process's memory: VmRSS, or VmHWM, its peak since `forget_most`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(what)


def forget_most(pid: int) -> None:
    """Reset the peak VmHWM."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.parametrize("media", ["unix", "tcp"])
@pytest.mark.parametrize("limit", [LIMIT, None], ids=["small limit", "default limit"])
def test_a_slow_receiver_bounds_the_memory_of_who_sends_and_gets_every_call(
    tmp_path: Path, media: str, limit: int | None
) -> None:
    options = {} if limit is None else {"max_unanswered_bytes": limit}
    with Workers(2, seconds=120) as workers:
        sender, receiver = workers
        workers.run(join, f"file://{tmp_path}/store", unix_sockets=media == "unix", **options)
        sender.call(steps.call, "worker1")  # the connection is there
        os.kill(receiver.pid, signal.SIGSTOP)
        try:
            forget_most(sender.pid)
            before = resident(sender.pid, "VmRSS")
            sending = sender.start(send_all, "worker1", str(tmp_path))
            # A call is a little longer than its tensor.
            admitted = CALLS if limit is None else limit // (SIZE + 1)
            sent = tmp_path / "sent"
            eventually(lambda: sent.exists() and sent.read_text() == str(admitted), sent.read_text)
            if limit is not None:
                time.sleep(0.5)  # in which it would send more, if it did not wait
                assert sent.read_text() == str(admitted)
        finally:
            os.kill(receiver.pid, signal.SIGCONT)
        sending.result()
        taken = resident(sender.pid, "VmHWM") - before
        if limit is None:  # so it is seen where there is no limit to speak of
            assert taken > CALLS * SIZE - SLACK
        else:
            assert taken < limit + SLACK
        assert receiver.call(runs) == {str(number): 1 for number in range(CALLS)}
        workers.run(steps.leave)


def answer_of(number: int, size: int, gate: str) -> torch.Tensor:
    """Return a large result for a small call, once the file `gate` exists."""
    eventually(Path(gate).exists, lambda: gate)
    return torch.full((size,), number, dtype=torch.uint8)


def ask(me: WorkerContext, to: str, gate: str) -> None:
    """Make all calls, and wait for their answers."""
    calls = [rpc.rpc_async(to, answer_of, args=(i, SIZE, gate), timeout=0) for i in range(CALLS)]
    for i, call in enumerate(calls):
        assert torch.equal(call.wait(), answer_of(i, SIZE, gate))


@pytest.mark.parametrize("media", ["unix", "tcp"])
def test_a_caller_that_does_not_read_bounds_the_memory_of_who_answers(
    tmp_path: Path, media: str
) -> None:
    """Further requests wait, other callers are served, and every reply arrives."""
    gate = tmp_path / "gate"
    with Workers(3, seconds=120) as workers:
        caller, answerer, other = workers
        workers.run(
            join,
            f"file://{tmp_path}/store",
            unix_sockets=media == "unix",
            max_unanswered_bytes=LIMIT,
            heartbeat_timeout=60,
        )
        for worker in (caller, other):
            worker.call(steps.call, "worker1")  # the connection is there
        before = answerer.call(metric, "agent.requests_received")
        asking = caller.start(ask, "worker1", str(gate))
        eventually(
            lambda: answerer.call(metric, "agent.requests_received") >= before + CALLS,
            lambda: "calls",
        )
        forget_most(answerer.pid)
        memory = resident(answerer.pid, "VmRSS")
        os.kill(caller.pid, signal.SIGSTOP)
        try:
            gate.touch()
            other.call(steps.call, "worker1")
            time.sleep(0.5)  # in which the answerer would make all answers
            taken = resident(answerer.pid, "VmHWM") - memory
        finally:
            os.kill(caller.pid, signal.SIGCONT)
        asking.result()
        assert taken < LIMIT + SLACK
        workers.run(steps.leave)
