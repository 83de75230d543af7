"""`max_unanswered_bytes` bounds the memory for a peer that does not read, and no call is lost."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.engines import ENGINES, join
from support.workers import WorkerContext, Workers, suspend
from support.zeromq import eventually, metric, run_counted, runs

pytestmark = pytest.mark.slow

MIB = 1 << 20
#: Bytes of the tensor of each call.
SIZE = MIB
LIMIT = 16 * MIB
CALLS = 160
#: Bytes that a sender may use beyond the limit, for encryption and in the allocator.
SLACK = 48 * MIB


#: The parameter of mallopt(3) for the size from which each allocation is a mapping of its own.
M_MMAP_THRESHOLD = -3


def return_freed_tensors(me: WorkerContext) -> None:
    """Make malloc() return the memory of a tensor as soon as the tensor is freed.

    In malloc()'s heap, freed tensors may leave gaps that later ones do not fit into. Then the process
    grows by a tensor for each call, whatever the backend holds.
    """
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, SIZE // 2) == 1


def send_all(me: WorkerContext, to: str, folder: str) -> None:
    """Make all calls, each with its own tensor, and wait for the answers."""
    progress = Path(folder) / "sent"
    futures = []
    for number in range(CALLS):
        progress.write_text(str(number))
        tensor = torch.full((SIZE,), number % 256, dtype=torch.uint8)
        futures.append(rpc.rpc_async(to, run_counted, args=(str(number), tensor), timeout=0))
        del tensor
    progress.write_text(str(CALLS))
    assert [future.wait() for future in futures] == list(map(str, range(CALLS)))


def call_large(me: WorkerContext, to: str) -> None:
    """Make calls to another worker one after the other; each returns a large tensor."""
    for _ in range(CALLS // 4):
        rpc.rpc_sync(to, torch.full, args=((SIZE,), 1), kwargs={"dtype": torch.uint8})


def memory(pid: int, field: str) -> int:
    """Return in bytes the current memory of a process (VmRSS), or its peak since `reset_peak` (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def reset_peak(pid: int) -> None:
    """Reset the peak VmHWM."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("limit", [LIMIT, None], ids=["small limit", "default limit"])
def test_unsent_calls_take_bounded_memory_and_all_arrive(
    tmp_path: Path, engine: str, limit: int | None
) -> None:
    """While the receiver is suspended, the sender's calls beyond the limit wait."""
    options = {} if limit is None else {"max_unanswered_bytes": limit}
    with Workers(3, seconds=120) as workers:
        sender, receiver, bystander = workers
        workers.run(join, f"file://{tmp_path}/store", engine, **options)
        sender.call(steps.call, "worker1")  # connects
        sender.call(return_freed_tensors)
        suspend(receiver.pid)
        try:
            reset_peak(sender.pid)
            before = memory(sender.pid, "VmRSS")
            sending = sender.start(send_all, "worker1", str(tmp_path))
            # The message of a call is a little longer than its tensor.
            admitted = CALLS if limit is None else limit // (SIZE + 1)
            sent = tmp_path / "sent"
            eventually(lambda: sent.exists() and sent.read_text() == str(admitted), sent.read_text)
            if limit is not None:
                bystander.call(call_large, "worker0")  # without the limit, worker0 would send more
                assert sent.read_text() == str(admitted)
        finally:
            os.kill(receiver.pid, signal.SIGCONT)
        sending.result()
        taken = memory(sender.pid, "VmHWM") - before
        if limit is None:  # shows that the measurement works: without a low limit much is used
            assert taken > CALLS * SIZE - SLACK
        else:
            assert taken < limit + SLACK
        assert receiver.call(runs) == {str(number): 1 for number in range(CALLS)}
        workers.run(steps.leave)


def large_answer(number: int, size: int, gate: str) -> torch.Tensor:
    """Return a large result for a small call, once the file `gate` exists."""
    eventually(Path(gate).exists, lambda: gate)
    return torch.full((size,), number, dtype=torch.uint8)


def call_all(me: WorkerContext, to: str, gate: str) -> None:
    """Make all calls, and wait for their answers."""
    calls = [rpc.rpc_async(to, large_answer, args=(i, SIZE, gate), timeout=0) for i in range(CALLS)]
    for i, call in enumerate(calls):
        assert torch.equal(call.wait(), large_answer(i, SIZE, gate))


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_for_unread_answers_is_bounded(tmp_path: Path, engine: str) -> None:
    """While the caller is suspended, other callers are served. In the end all answers arrive."""
    gate = tmp_path / "gate"
    with Workers(3, seconds=120) as workers:
        caller, callee, bystander = workers
        workers.run(join, f"file://{tmp_path}/store", engine, max_unanswered_bytes=LIMIT)
        for worker in (caller, bystander):
            worker.call(steps.call, "worker1")  # connects
        callee.call(return_freed_tensors)
        before = callee.call(metric, "agent.requests_received")
        calling = caller.start(call_all, "worker1", str(gate))
        eventually(
            lambda: callee.call(metric, "agent.requests_received") >= before + CALLS,
            lambda: "all calls have arrived",
        )
        reset_peak(callee.pid)
        before_answers = memory(callee.pid, "VmRSS")
        suspend(caller.pid)
        try:
            gate.touch()
            bystander.call(call_large, "worker1")  # without the limit, it would make all answers
            taken = memory(callee.pid, "VmHWM") - before_answers
        finally:
            os.kill(caller.pid, signal.SIGCONT)
        calling.result()
        assert taken < LIMIT + SLACK
        workers.run(steps.leave)
