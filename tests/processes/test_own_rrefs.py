"""RRefs that a worker creates on itself."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from pathlib import Path

import pytest
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

released = threading.Event()


def wait_for_release() -> bool:
    """Wait for the test."""
    return released.wait(60)


class Sleeper:
    """An object whose method runs until the test releases it."""

    def wait(self) -> bool:
        """Wait for the test."""
        return wait_for_release()


def wait_for_value(me: WorkerContext) -> str:
    """Create an RRef on this worker with a time-out, and wait for its value; return the error."""
    released.clear()
    rref: rpc.RRef[bool] = rpc.RRef(Sleeper()).remote(timeout=1).wait()
    try:
        rref.to_here(timeout=60)
    except RuntimeError as error:
        return str(error)
    finally:
        released.set()
    return "no error"


def wait_for_a_second(me: WorkerContext) -> str:
    """Wait for a value that this worker creates on itself, but not for long; return the error."""
    released.clear()
    rref = rpc.remote(me.name, wait_for_release, timeout=0)
    try:
        rref.to_here(timeout=1)
    except RuntimeError as error:
        return str(error)
    finally:
        released.set()
        assert rref.to_here(timeout=30)
    return "no error"


def time_out(me: WorkerContext) -> None:
    """Create an RRef on this worker that times out; return when torch has deleted it."""
    released.clear()
    rref = rpc.remote(me.name, wait_for_release, timeout=0.1)
    with contextlib.suppress(RuntimeError):
        rref._get_future().wait()
    del rref
    while _rref_context_get_debug_info()["num_owner_rrefs"] != "0":
        time.sleep(0.01)


def bytes_changed_by_a_timeout(me: WorkerContext) -> int:
    """Let two RRefs time out; count the bytes that the second changes where the first was."""
    memory = ctypes.CDLL(None)
    memory.malloc.restype = ctypes.c_void_p
    time_out(me)
    try:
        blocks = [memory.malloc(size) for size in range(16, 512, 16) for _ in range(300)]
        sizes = [size for size in range(16, 512, 16) for _ in range(300)]
        for block, size in zip(blocks, sizes, strict=True):
            ctypes.memset(block, 0, size)
        released.set()
        time_out(me)
        return sum(
            size - ctypes.string_at(block, size).count(0)
            for block, size in zip(blocks, sizes, strict=True)
        )
    finally:
        released.set()


def errors_of_late_creations(me: WorkerContext) -> list[str]:
    """Let two creations time out; return what ``to_here`` raises for each."""
    errors = []
    released.clear()
    for _ in range(2):
        rref = rpc.remote(me.name, wait_for_release, timeout=0.1)
        with contextlib.suppress(RuntimeError):
            rref._get_future().wait()
        try:
            rref.to_here(timeout=20)
        except RuntimeError as error:
            errors.append(str(error))
    released.set()
    return errors


# TENSORPIPE does so only with an interceptor in front, such as the recorder, which is off in tests.
@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_to_here_ends_when_the_creation_on_itself_times_out(tmp_path: Path, backend: str) -> None:
    with Workers(1, seconds=30) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        # A to_here() that begins after the creation has timed out has another text.
        error = workers[0].call(wait_for_value)
        waited, later = (
            "RPC ran for more than set timeout (1000 ms)",
            "RRef creation via rpc.remote()",
        )
        assert waited in error or later in error
        workers.run(steps.leave)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX", "TENSORPIPE"])
def test_to_here_honours_its_timeout_on_the_owner(tmp_path: Path, backend: str) -> None:
    with Workers(1, seconds=30) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        error = workers[0].call(wait_for_a_second)
        assert error.startswith("RPCErr:1:RPC ran for more than set timeout (1000 ms)")
        workers.run(steps.leave)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX", "TENSORPIPE"])
def test_a_timed_out_creation_changes_no_freed_memory(tmp_path: Path, backend: str) -> None:
    """Torch keeps the address of the first RRef that times out; later calls ended with SIGSEGV."""
    # On TENSORPIPE the recorder protects that RRef.
    with Workers(1, seconds=60, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        assert workers[0].call(bytes_changed_by_a_timeout) == 0
        workers.run(steps.leave)
        assert workers[0].end() == 0


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX", "TENSORPIPE"])
def test_each_timed_out_creation_is_an_error_at_once(tmp_path: Path, backend: str) -> None:
    """Torch marks only the first RRef; to_here() waits for the others."""
    with Workers(1, seconds=60, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        first, second = workers[0].call(errors_of_late_creations)
        assert "RRef creation via rpc.remote() timed out" in first
        assert "RRef creation via rpc.remote() timed out" in second
        workers.run(steps.leave)
