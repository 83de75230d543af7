"""Groups of workers on UCX: how they start, which transports they use, and lost workers."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_agents.engine import secret
from support import steps
from support.workers import WorkerContext, WorkerError, Workers, suspend
from support.zeromq import eventually, metric

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_memory_files")]


def join(me: WorkerContext, url: str, **options: Any) -> None:
    """Join a group on UCX."""
    dynamic = options.pop("dynamic", False)
    steps.join(me, url, backend="UCX", world_size=None if dynamic else 0, **options)


def transports(me: WorkerContext, peer: int) -> str:
    """Return the UCX transports by which this worker reaches a peer."""
    names: str = rpc.api._get_current_rpc_agent().get_debug_info()[
        f"transport.ucx.transports.{peer}"
    ]
    return names


def echo(me: WorkerContext, to: str, size: int) -> bool:
    """Send a tensor to a worker and compare what comes back."""
    tensor = torch.arange(size, dtype=torch.float32)
    return torch.equal(rpc.rpc_sync(to, torch.neg, args=(tensor,)), -tensor)


def wait_for_ever() -> None:
    """Block; called by RPC."""
    threading.Event().wait()


def call_a_worker_that_dies(me: WorkerContext, to: str, pid: int) -> str:
    """Return the error of a call whose callee is killed."""
    call = rpc.rpc_async(to, wait_for_ever, timeout=60)
    os.kill(pid, signal.SIGKILL)
    try:
        call.wait()
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("media", ["shm", "tcp"])
def test_a_group_forms_and_sends_tensors(tmp_path: Path, dynamic: bool, media: str) -> None:
    tcp = {"trusted_network": True, "transports": ["tcp"]} if media == "tcp" else {}
    with Workers(2, seconds=120) as workers:
        workers.run(join, f"file://{tmp_path}/store", dynamic=dynamic, **tcp)
        for size in (1, 20_000, 3_000_000):
            assert workers[0].call(echo, "worker1", size)
        used = workers[0].call(transports, 1)
        assert used.startswith("tcp/") if media == "tcp" else "posix/memory" in used
        workers.run(steps.leave)


def test_workers_need_the_same_secret(tmp_path: Path) -> None:
    secrets = [secret.generate() for _ in range(2)]
    with Workers(2, seconds=120) as workers:
        started = [
            worker.start(join, f"file://{tmp_path}/store", secret=secrets[worker.index])
            for worker in workers
        ]
        for step in started:
            with pytest.raises(WorkerError, match="has a different secret"):
                step.result()


def test_a_call_fails_when_its_worker_is_killed(tmp_path: Path) -> None:
    with Workers(2, seconds=120) as workers:
        workers.run(join, f"file://{tmp_path}/store", dynamic=True)
        error = workers[0].call(call_a_worker_that_dies, "worker1", workers[1].pid)

        assert "RPC to 'worker1' failed: " in error
        workers[0].call(steps.leave, graceful=False)


def let_calls_time_out(me: WorkerContext, to: str) -> int:
    """Make small calls that time out; return the bytes that the agent then counts as unanswered."""
    calls = [rpc.rpc_async(to, torch.neg, args=(torch.ones(1),), timeout=0.1) for _ in range(900)]
    for call in calls:
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            call.wait()
    return metric(me, "agent.unanswered_bytes")


def test_small_messages_that_wait_for_a_suspended_worker_count(tmp_path: Path) -> None:
    """They take memory even if their calls have timed out, so `max_unanswered_bytes` limits them."""
    with Workers(2, seconds=60) as workers:
        workers.run(join, f"file://{tmp_path}/store", max_unanswered_bytes=1 << 20)
        workers[0].call(steps.call, "worker1")  # connects
        suspend(workers[1].pid)
        try:
            assert 0 < workers[0].call(let_calls_time_out, "worker1") <= 1 << 20
        finally:
            os.kill(workers[1].pid, signal.SIGCONT)
        eventually(
            lambda: workers[0].call(metric, "agent.unanswered_bytes") == 0,
            lambda: "no unanswered bytes",
        )
        workers.run(steps.leave)
