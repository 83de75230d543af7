"""Groups of up to 64 workers on one machine: they form, communicate and shut down."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.engines import join
from support.steps import meeting
from support.workers import WorkerContext, Workers
from support.zeromq import metric

pytestmark = pytest.mark.slow

#: Each worker calls the workers whose ranks are this much higher, modulo the world size.
RANK_OFFSETS = (1, 7, 13)
#: Seconds that a group may take; a passing test needs far less.
TIME_LIMIT = 180


def call_some(me: WorkerContext) -> None:
    """Call a few other workers at the same time, and check the results."""
    others = [f"worker{(me.index + n) % me.size}" for n in RANK_OFFSETS]
    tensor = torch.full((1000,), float(me.index))
    names = [rpc.rpc_async(peer, steps.who) for peer in others]
    sums = [rpc.rpc_async(peer, torch.add, args=(tensor, 1)) for peer in others]
    assert [future.wait().split()[0] for future in names] == others
    for future in sums:
        assert torch.equal(future.wait(), tensor + 1)


def memory(pid: int) -> int:
    """Return a process's share of the memory (PSS), in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(pid)


@pytest.mark.parametrize("engine", ["ZEROMQ", "UCX"])
@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_large_group_forms_communicates_and_shuts_down(
    engine: str, size: int, dynamic: bool, tmp_path: Path
) -> None:
    """All workers start, or join the dynamic group, at the same time."""
    # With 64 workers over TCP, torch's own store takes most of the start.
    kind = "tcp" if size <= 16 else "file"
    with meeting(kind, tmp_path) as where, Workers(size, seconds=TIME_LIMIT) as workers:
        times = [time.monotonic()]
        workers.run(join, where.url, engine, dynamic=dynamic)
        times.append(time.monotonic())
        workers.run(call_some)
        times.append(time.monotonic())
        share = sum(memory(worker.pid) for worker in workers)
        files = max(len([*Path(f"/proc/{worker.pid}/fd").iterdir()]) for worker in workers)
        if dynamic:
            everybody = {worker.name: worker.index for worker in workers}
            assert workers[size - 1].call(steps.members) == everybody
        # A worker connects to those that it calls. On UCX it also connects to its callers.
        expected = len(RANK_OFFSETS) * (2 if engine == "UCX" else 1)
        for worker in (workers[0], workers[size - 1]):
            connections = worker.call(metric, f"transport.{engine.lower()}.connections")
            assert connections == expected
        times.append(time.monotonic())
        workers.run(steps.leave)
        times.append(time.monotonic())
        # Ending all workers one by one would take most of the test's time, so only two are ended.
        assert [workers[rank].end() for rank in (0, size - 1)] == [0, 0]
    start, calls, _, stop = (b - a for a, b in itertools.pairwise(times))
    print(
        f"{engine}, {size} workers, {'dynamic' if dynamic else 'static'}: start {start:.1f} s, "
        f"first calls {calls:.1f} s, shutdown {stop:.1f} s, {share} MiB together, "
        f"{files} open files at most"
    )
