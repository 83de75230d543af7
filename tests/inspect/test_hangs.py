"""Real workers hang, and `rpc-backends inspect` names the cause."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_rpc import _rref_context_get_debug_info
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers, suspend

pytestmark = pytest.mark.slow

LIMIT = 60.0
LOCK = threading.Lock()
HELD: list[Any] = []


# --- what the workers do ----------------------------------------------------------------------------


def fetch() -> int:
    with LOCK:
        return 1


def update(peer: str) -> int:
    return rpc.rpc_sync(peer, fetch, timeout=0)


def sleep_long() -> None:
    time.sleep(1000)


def hold_gil() -> None:
    # PyDLL does not release the GIL during the call.
    import ctypes

    ctypes.PyDLL(None).sleep(1000)


def fetch_slowly() -> int:
    while not HELD:
        time.sleep(0.01)
    return 1


def call_and_hold_gil(me: WorkerContext, to: str) -> None:
    """Wait for an answer in one thread, and hold the GIL in another one."""
    call_in_background(me, to, sleep_long)
    hold_gil()


def fail_to_start(me: WorkerContext, url: str, backend: str) -> str:
    """Wait too short a time for the other worker, and call `shutdown` all the same."""
    os.environ["RPC_BACKENDS_JOIN_TIMEOUT"] = "0.5"
    with pytest.raises(RuntimeError) as caught:
        steps.join(me, url, backend=backend)
    with pytest.raises(RuntimeError, match="not been initialized"):
        rpc.shutdown()
    return f"{type(caught.value).__name__}: {caught.value}"


def wait_in_barrier() -> None:
    dist.barrier()


def call_in_background(me: WorkerContext, to: str, function: Any, *arguments: Any) -> None:
    """Make a call on a thread that may hang."""
    threading.Thread(
        target=rpc.rpc_sync, args=(to, function, arguments), kwargs={"timeout": 0}, daemon=True
    ).start()


def call_under_lock_once(me: WorkerContext, to: str, function: Any, *arguments: Any) -> None:
    LOCK.acquire(blocking=False)
    call_in_background(me, to, function, *arguments)


def sleep_here(me: WorkerContext) -> None:
    time.sleep(1000)


def call_barrier(me: WorkerContext, to: str) -> None:
    rpc.rpc_sync(to, wait_in_barrier, timeout=0)


def call_under_lock(me: WorkerContext, to: str, function: Any, *arguments: Any) -> None:
    """Take the lock, so that this worker cannot answer `fetch`, and make a call on a thread."""
    LOCK.acquire()
    call_in_background(me, to, function, *arguments)


def shut_down_in_background(me: WorkerContext) -> None:
    threading.Thread(target=rpc.shutdown, daemon=True).start()


def hold_rref_of(me: WorkerContext, owner: str) -> None:
    held = rpc.remote(owner, torch.add, (torch.ones(2), 1))
    held.to_here()
    HELD.append(held)


def use_and_delete_rref(me: WorkerContext) -> None:
    held = rpc.remote("worker1", torch.add, (torch.ones(2), 1))
    held.to_here()
    del held
    # The deletion is a message too: wait until no RRef is left at its owner.
    while int(_rref_context_get_debug_info()["num_forks"]):
        time.sleep(0.01)


def hold(rref: Any) -> None:
    HELD.append(rref)


def share_rref_with(me: WorkerContext, user: str) -> None:
    rpc.rpc_sync(user, hold, (rpc.RRef(torch.ones(2)),))


def make_process_group(me: WorkerContext, url: str) -> None:
    dist.init_process_group("gloo", init_method=url, rank=me.index, world_size=2)


# --- the command ------------------------------------------------------------------------------------


def inspect(workers: Workers, *arguments: str) -> dict[str, Any]:
    """Run `rpc-backends inspect --json` for these workers."""
    command = [sys.executable, "-m", "rpc_backends_cli", "inspect", "--json", *arguments]
    for worker in workers:
        command += ["--pid", str(worker.pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def cause(workers: Workers, kind: str, text: str = "") -> str:
    """Inspect until a cause of this kind contains this text; return the whole text."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            causes = inspect(workers)["causes"]
        except subprocess.CalledProcessError:  # they have not called init_rpc yet
            causes = []
        for each in causes:
            if each["kind"] == kind and text in each["text"]:
                return str(each["text"])
        assert time.monotonic() < end, f"no cause {kind!r} with {text!r}: {causes}"


def wait_for_shutdown(workers: Workers, name: str) -> None:
    end = time.monotonic() + LIMIT
    while not any(
        worker["worker"] == name and frame["function"] == "shutdown"
        for worker in inspect(workers)["workers"]
        for thread in worker.get("threads", [])
        for frame in thread["frames"]
    ):
        assert time.monotonic() < end, f"{name} does not call shutdown"


@pytest.fixture(params=["TENSORPIPE", "ZEROMQ", pytest.param("UCX", marks=pytest.mark.thorough)])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workers]:
    """Two workers, worker0 and worker1, with two threads each and a recorder."""
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(
            steps.join, f"file://{tmp_path}/store", backend=request.param, num_worker_threads=2
        )
        yield workers


@pytest.fixture
def unstarted() -> Iterator[Workers]:
    """Two processes in which RPC has not started."""
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        yield workers


def test_a_cycle_is_named_with_its_functions(two: Workers) -> None:
    two[0].call(call_under_lock, "worker1", update, "worker0")
    text = (
        "'worker0' waits for 'worker1' in `update`, which waits for 'worker0' in `fetch`; there, "
        "'worker0' is at fetch (test_hangs.py:"
    )
    assert cause(two, "cycle", text).startswith(text)


def test_a_worker_in_a_cycle_is_not_named_for_shutdown(two: Workers) -> None:
    """It has not called `shutdown` because of the cycle, which is named."""
    two[0].call(call_under_lock, "worker1", update, "worker0")
    cause(two, "cycle")
    step = two[1].start(steps.leave)
    wait_for_shutdown(two, "worker1")
    assert {cause["kind"] for cause in inspect(two)["causes"]} == {"cycle"}
    step.worker.kill()


def test_a_stopped_worker_is_named(two: Workers) -> None:
    two[0].call(call_in_background, "worker1", sleep_long)
    suspend(two[1].pid)
    try:
        text = cause(two, "gone")
    finally:
        os.kill(two[1].pid, signal.SIGCONT)
    assert text == (
        f"'worker1' (process {two[1].pid}) is stopped by a signal or a debugger; 1 call of 'worker0' to "
        "it cannot be answered"
    )


def test_a_killed_worker_is_named(two: Workers) -> None:
    """A killed worker leaves no trace, so it is named as one that was not inspected."""
    two[1].kill()
    two[0].call(shut_down_in_background)
    assert cause(two, "shutdown", "'worker1'").startswith(
        "'worker0' waits in shutdown for 'worker1': 'worker1' is not among the workers that were "
        f"inspected, on {socket.gethostname()!r}: it has ended, or it runs elsewhere"
    )


def test_a_function_that_holds_the_gil_is_named(two: Workers) -> None:
    two[0].call(call_in_background, "worker1", hold_gil)
    text = cause(two, "gil", "one thread holds the GIL, in hold_gil (test_hangs.py:")
    assert text.startswith(f"'worker1' (process {two[1].pid}) has run no Python for ")
    assert text.endswith("and all others wait for it; 1 call of 'worker0' may need it")


def test_json_has_the_frames_of_each_thread_and_who_holds_the_gil(two: Workers) -> None:
    two[0].call(call_in_background, "worker1", hold_gil)
    cause(two, "gil", "in hold_gil")
    (worker1,) = (worker for worker in inspect(two)["workers"] if worker["worker"] == "worker1")
    (holder,) = (thread for thread in worker1["threads"] if thread["holds_gil"])
    frame = next(frame for frame in holder["frames"] if frame["function"] == "hold_gil")
    assert Path(frame["file"]).name == Path(__file__).name
    assert frame["line"] > 0
    assert len(worker1["threads"]) > 1


def test_a_caller_that_holds_the_gil_is_named(two: Workers) -> None:
    """To a user, it looks as if waiting for an answer stopped the other threads."""
    two[1].call(call_in_background, "worker0", fetch_slowly)
    step = two[0].start(call_and_hold_gil, "worker1")
    text = cause(two, "gil", "1 call of 'worker1' may need it")
    assert text.startswith(f"'worker0' (process {two[0].pid}) has run no Python for ")
    assert "one thread holds the GIL, in hold_gil (test_hangs.py:" in text
    step.worker.kill()


def test_a_used_up_thread_pool_is_named(two: Workers) -> None:
    for _ in range(2):
        two[0].call(call_under_lock_once, "worker1", update, "worker0")
    text = cause(two, "threads")
    assert text.startswith(
        "all 2 threads of 'worker1' are used up: they run `update` for other workers, and each waits "
        "for a call of its own to 'worker0'. Raise num_worker_threads"
    )


def test_a_shutdown_names_the_missing_worker(two: Workers) -> None:
    two[0].call(shut_down_in_background)
    step = two[1].start(sleep_here)
    text = cause(two, "shutdown", "sleep_here (test_hangs.py:")
    assert text.startswith(
        f"'worker0' waits in shutdown for 'worker1' (process {two[1].pid}), which is in"
    )
    step.worker.kill()


def test_an_rref_that_is_held_at_shutdown_is_named(two: Workers) -> None:
    two[1].call(hold_rref_of, "worker0")
    two[0].call(shut_down_in_background)
    assert cause(two, "rref").startswith("RRefs of 'worker0' are still in use: 'worker1' holds 1. ")


def test_a_shared_rref_that_is_held_at_shutdown_is_named(two: Workers) -> None:
    two[0].call(share_rref_with, "worker1")
    two[0].call(shut_down_in_background)
    assert cause(two, "rref").startswith(
        "RRefs of 'worker0' are still in use: 1 that 'worker0' has shared are held by 'worker1'. "
    )


def test_deleted_rrefs_are_not_named(two: Workers) -> None:
    two.run(use_and_delete_rref)
    two[0].call(shut_down_in_background)
    assert cause(two, "shutdown")
    assert [cause for cause in inspect(two)["causes"] if cause["kind"] == "rref"] == []


def test_a_worker_whose_start_failed_is_named(unstarted: Workers, tmp_path: Path) -> None:
    """Worker0 has called `shutdown` after its failed `init_rpc`; worker1 waits for it in `init_rpc`."""
    url = f"file://{tmp_path}/store"
    error = unstarted[0].call(fail_to_start, url, "ZEROMQ")
    step = unstarted[1].start(steps.join, url, backend="ZEROMQ")
    assert cause(unstarted, "start", "failed").startswith(
        "'worker1' (rank 1 of 2) waits in init_rpc for 'worker0' (process "
        f"{unstarted[0].pid}), whose init_rpc failed: {error[:60]}"
    )
    step.worker.kill()


@pytest.mark.parametrize(
    "backend", ["TENSORPIPE", "ZEROMQ", pytest.param("UCX", marks=pytest.mark.thorough)]
)
def test_a_rank_that_has_not_started_is_named(
    unstarted: Workers, tmp_path: Path, backend: str
) -> None:
    url = f"file://{tmp_path}/store"
    step = unstarted[1].start(steps.join, url, backend=backend)
    assert cause(unstarted, "start") == (
        f"'worker1' (rank 1 of 2) waits in init_rpc at {url} for rank 0, which was not found on "
        f"{socket.gethostname()!r}: it has not called init_rpc, has ended, has another address, or "
        "runs on another host"
    )
    step.worker.kill()


def test_a_deadlock_with_a_barrier_is_named(two: Workers, tmp_path: Path) -> None:
    two.run(make_process_group, f"file://{tmp_path}/group")
    step = two[0].start(call_barrier, "worker1")
    assert cause(
        two,
        "cycle",
        "'worker0' waits for 'worker1' in `wait_in_barrier`, which waits for 'worker0' in `barrier`",
    )
    step.worker.kill()


def test_dumps_of_several_workers_are_read_together(two: Workers, tmp_path: Path) -> None:
    two[0].call(call_under_lock, "worker1", update, "worker0")
    live = cause(two, "cycle", "there, 'worker0' is at fetch")  # it stays there
    inspect(two, "--save", str(tmp_path / "dumps"))
    files = sorted((tmp_path / "dumps").iterdir())
    assert len(files) == 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    command = [sys.executable, "-m", "rpc_backends_cli", "inspect", "--json", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert live in [cause["text"] for cause in json.loads(done.stdout)["causes"]]
