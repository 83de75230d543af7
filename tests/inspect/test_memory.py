"""The recorder's memory does not grow with the number of calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

BLOCK = 100_000
#: Bytes by which the heap may grow. A recorded call takes about a hundred bytes.
GROWTH = 8 << 20


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def call_many(me: WorkerContext, to: str, count: int) -> int:
    for _ in range(count // 100):
        futures = [rpc.rpc_async(to, torch.add, (torch.ones(1), 1)) for _ in range(100)]
        for future in futures:
            future.wait()
    return resident()


def own_memory(me: WorkerContext) -> int:
    return resident()


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["TENSORPIPE", "ZEROMQ", "UCX"])
def test_a_million_recorded_calls_need_no_more_memory(backend: str, tmp_path: Path) -> None:
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}, seconds=3600) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(call_many, "worker1", BLOCK)  # fills the recorder's ring and torch's pools
        before = [workers[0].call(own_memory), workers[1].call(own_memory)]
        for _ in range(1_000_000 // BLOCK):
            workers[0].call(call_many, "worker1", BLOCK)
        after = [workers[0].call(own_memory), workers[1].call(own_memory)]
        assert max(b - a for a, b in zip(before, after, strict=True)) < GROWTH, (before, after)
