"""What a worker does first when it shuts down while other workers call it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

#: Results and RRefs that stay alive until their process ends.
kept: list[Any] = []


def owned_when_stopped(own: str) -> None:
    """Wait until this worker's agent stops, and keep the number of RRefs that the worker owns then."""
    kept.append("started")
    try:
        while True:
            rpc.rpc_async(own, abs, args=(1,))
            time.sleep(0.01)
    except RuntimeError:  # the agent no longer sends
        kept.append(int(_rref_context_get_debug_info()["num_owner_rrefs"]))


def call(me: WorkerContext) -> None:
    """Create an RRef that worker1 owns, and make a call to worker1 that ends when its agent stops."""
    rref = rpc.remote("worker1", torch.add, args=(torch.ones(2), 1))
    rref.to_here()
    kept.extend([rref, rpc.rpc_async("worker1", owned_when_stopped, args=("worker1",))])


def stop(me: WorkerContext) -> list[Any]:
    """Shut down while the call runs; return what it has kept."""
    while not kept:
        time.sleep(0.01)
    rpc.shutdown(graceful=False)
    while len(kept) < 2:
        time.sleep(0.01)
    return kept


@pytest.mark.parametrize("backend", ["TENSORPIPE", "ZEROMQ", "UCX"])
def test_requests_end_before_their_rrefs_are_destroyed(tmp_path: Path, backend: str) -> None:
    """Torch destroys RRefs without a lock; a request that uses one meanwhile crashes the process."""
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(call)
        assert workers[1].call(stop) == ["started", 1]
        workers[0].call(steps.leave, graceful=False)
        assert [worker.end() for worker in workers] == [0, 0]


def leave_while_an_exception_is_handled(me: WorkerContext) -> list[str]:
    """Shut down where programs often do, and return what the other workers were told of a failure."""
    from rpc_backends_core._process_state import STATE

    told: list[str] = []
    STATE.session.group.fail = told.append
    with contextlib.suppress(ValueError):
        try:
            raise ValueError("training failed")
        finally:
            rpc.shutdown()
    return told


def test_a_shutdown_after_the_programs_own_error_has_not_failed(tmp_path: Path) -> None:
    with Workers(2, seconds=90) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        leaving = workers[0].start(leave_while_an_exception_is_handled)
        workers[1].call(steps.leave)
        assert leaving.result() == []
