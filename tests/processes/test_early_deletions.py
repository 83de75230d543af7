"""Deletions of RRefs that reach the owner before the function that makes the value has returned."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc
from torch.futures import Future

from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

released = threading.Event()


def wait_for_release() -> bool:
    """Wait for the test."""
    return released.wait(60)


@rpc.functions.async_execution
def promise() -> Future[bool]:
    """Wait for the test, and return a future that never gets a value."""
    released.wait(60)
    return Future()


def create_too_late(me: WorkerContext, function: Callable[[], Any]) -> None:
    """Create RRefs on the other worker that time out, and delete them there."""
    for _ in range(3):
        rref = rpc.remote("worker1", function, timeout=0.1)
        with contextlib.suppress(RuntimeError):
            rref._get_future().wait()
        del rref
    wait_until(lambda: _rref_context_get_debug_info()["num_pending_futures"] == "0")


def release(me: WorkerContext) -> None:
    """Let the functions return."""
    released.set()


@pytest.mark.parametrize("function", [wait_for_release, promise])
@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX", "TENSORPIPE"])
def test_shutdown_waits_for_no_timed_out_creation(
    tmp_path: Path, backend: str, function: Callable[[], Any]
) -> None:
    """Torch ignores the deletions, and the owner's shutdown waits for them until it times out."""
    # On TENSORPIPE the recorder's agent sees the deletions.
    with Workers(2, seconds=30, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        workers[0].call(create_too_late, function)
        workers[1].call(release)
        workers.run(steps.leave)
