"""A worker survives the death of a peer during calls, and a fork of its process; how it ends itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.distributed import rpc

from support import steps
from support.command import run_python
from support.engines import ENGINES, join
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, metric

pytestmark = pytest.mark.slow
on_both = pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])

PEER = """
import os, signal, sys
import torch
from torch.distributed import rpc

def start(rank, world_size=2):
    member = rpc.BackendType[sys.argv[1]]
    options = rpc.backend_registry.construct_rpc_backend_options(member, init_method=sys.argv[2])
    rpc.init_rpc(f"w{rank}", member, rank, world_size, options)

def call(to):
    return rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]

def sleep():
    signal.pause()
"""

WITH_A_PEER_THAT_DIES = """
if __name__ == "__main__":
    peer = os.fork()
    start(0 if peer else 1)
    if not peer:
        signal.pause()
    assert call("w1")
    rrefs = [rpc.remote("w1", sleep) for _ in range(8)]
    os.kill(peer, signal.SIGKILL)
    for rref in rrefs:
        try:
            rref.to_here(timeout=60)
        except RuntimeError as error:
            assert "RPC to 'w1' failed: " in str(error), error
        else:
            raise AssertionError("the value arrived")
    print(call("w0"), flush=True)
    os._exit(0)
"""

WITH_AN_RREF_WHOSE_OWNER_DIES = """
import time

kept = []

def make():
    kept.append(rpc.remote("w2", torch.add, args=(torch.ones(2), 1)))
    return kept[0].to_here().tolist()

def keep(rref):
    kept.append(rref)

def share():
    kept.append(rpc.rpc_async("w0", keep, args=(kept[0],)))

if __name__ == "__main__":
    pids = []
    for rank in (1, 2, 0):
        pids.append(os.fork() if rank else None)
        if pids[-1] == 0:
            break
    start(rank, 3)
    if rank:
        signal.pause()
    assert rpc.rpc_sync("w1", make) == [2, 2]
    os.kill(pids[1], signal.SIGKILL)
    rpc.rpc_sync("w1", share)
    # Torch tries six times in 13 s to tell the owner that this worker has the RRef; then it throws.
    agent = rpc.api._get_current_rpc_agent()
    while agent.get_metrics()["agent.contained_errors"] == "0":
        time.sleep(0.1)
    print(call("w1"), flush=True)
    os.kill(pids[0], signal.SIGKILL)
    os._exit(0)
"""

THAT_FORKS = """
def status(child):
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

if __name__ == "__main__":
    peer = os.fork()
    start(0 if peer else 1)
    if peer:
        assert call("w1")
        ends = [status(lambda: None), status(rpc.shutdown)]
        print(ends, call("w1"), flush=True)
    rpc.shutdown()
    if peer:
        sys.exit(os.waitpid(peer, 0)[1])
"""


#: Calls of a round. All run at the same time.
CALLS = 16
_all_have_arrived = threading.Barrier(CALLS)


def wait_for_all_and_return(number: int) -> int:
    """Return a number when all calls of the round have arrived."""
    _all_have_arrived.wait(30)
    return number


def make_calls(me: WorkerContext, to: str) -> list[int]:
    """Make the calls of a round, and return the results."""
    calls = [rpc.rpc_async(to, wait_for_all_and_return, args=(i,)) for i in range(CALLS)]
    return [call.wait() for call in calls]


def leave_after_answers(me: WorkerContext, answered: int) -> None:
    """Leave without notice as soon as the answers are sent."""

    def done() -> bool:
        received = metric(me, "agent.requests_received")
        return received >= answered and metric(me, "agent.server_active_calls") == 0

    eventually(done, lambda: "all answers are sent")
    steps.leave(me, graceful=False)


# A callback that is registered first runs last. It keeps the GIL, so the call ends after the interpreter.
# A function of PyDLL does not release the GIL; this one takes two seconds.
KEEPS_THE_GIL_AT_EXIT = """
import atexit, ctypes
atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)
"""

ENDS_DURING_A_CALL = """
import threading, time

started = threading.Event()

def sleep_soon():
    started.set()
    time.sleep(0.3)

def sleep_long():
    started.set()
    time.sleep(3600)

def sleep_until_the_end():  # longer than the agent waits at exit, and until the interpreter ends
    started.set()
    time.sleep(2)

def ignore_the_end():
    started.set()
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            pass

def compute_without_the_gil():
    a = torch.ones(1000, 1000)
    started.set()
    while True:
        a @ a

def compute():
    started.set()
    while True:
        pass

if __name__ == "__main__":
    start(0, world_size=1)
    rpc.rpc_async("w0", CALL)
    assert started.wait(60)
    if LEAVES:
        rpc.shutdown(graceful=False)
    print("ended")
    sys.exit(STATUS)
"""


# What is registered first runs last. The peer gets to its end before it is called.
SHUTS_DOWN_AT_EXIT = """
import atexit

def finish():
    if peer:
        print(os.waitpid(peer, 0)[1])

atexit.register(finish)
atexit.register(rpc.shutdown)

if __name__ == "__main__":
    reading, writing = os.pipe()
    peer = os.fork()
    start(0 if peer else 1)
    if peer:
        os.read(reading, 1)
        print(call("w1"), end=" ")
    else:
        atexit.register(os.write, writing, b"x")
"""


def run(tmp_path: Path, program: str, backend: str, *, before: str = "", status: int = 0) -> str:
    """Run a program that forks its workers; return its output.

    :param before: what it does before it imports torch.
    :param status: its exit status.
    """
    script = tmp_path / "worker.py"
    script.write_text(before + PEER + program)
    arguments = (script, backend, f"file://{tmp_path}/store")
    if before:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
    else:
        done = run_python(*arguments)
    assert done.returncode == status, done.stderr
    return done.stdout


@on_both
def test_pending_remote_calls_fail_when_their_peer_dies(tmp_path: Path, backend: str) -> None:
    assert run(tmp_path, WITH_A_PEER_THAT_DIES, backend) == "True\n"


@pytest.mark.thorough
@on_both
def test_a_worker_survives_the_death_of_an_rref_owner(tmp_path: Path, backend: str) -> None:
    assert run(tmp_path, WITH_AN_RREF_WHOSE_OWNER_DIES, backend) == "True\n"


@on_both
def test_a_forked_child_exits_and_the_worker_continues(tmp_path: Path, backend: str) -> None:
    assert run(tmp_path, THAT_FORKS, backend) == "[0, 0] True\n"


@pytest.mark.parametrize(
    ("call", "leaves", "backend"),
    [
        ("sleep_soon", False, "ZEROMQ"),
        ("sleep_long", False, "ZEROMQ"),
        ("sleep_until_the_end", False, "ZEROMQ"),
        ("sleep_until_the_end", False, "UCX"),
        ("compute", False, "UCX"),
        ("compute", True, "ZEROMQ"),
        # The agent, which both engines share, ends the thread of the call.
        pytest.param("sleep_soon", False, "UCX", marks=pytest.mark.thorough),
        pytest.param("sleep_long", False, "UCX", marks=pytest.mark.thorough),
        pytest.param("compute", False, "ZEROMQ", marks=pytest.mark.thorough),
        pytest.param("compute", True, "UCX", marks=pytest.mark.thorough),
    ],
)
def test_a_process_may_end_during_a_call(
    tmp_path: Path, backend: str, call: str, leaves: bool
) -> None:
    """A thread that asks for the GIL when the interpreter has ended would abort the process."""
    assert end_during(tmp_path, backend, call, leaves) == "ended\n"


@pytest.mark.parametrize("call", ["ignore_the_end", "compute_without_the_gil"])
def test_a_function_that_does_not_stop_does_not_abort_the_process(
    tmp_path: Path, call: str
) -> None:
    assert end_during(tmp_path, "ZEROMQ", call) == "ended\n"


def end_during(tmp_path: Path, backend: str, call: str, leaves: bool = False) -> str:
    """Run a program that ends during a call with status 3; return its output."""
    program = ENDS_DURING_A_CALL.replace("CALL", call).replace("LEAVES", str(leaves))
    program = program.replace("STATUS", "3")
    return run(tmp_path, program, backend, before=KEEPS_THE_GIL_AT_EXIT, status=3)


@on_both
def test_shutdown_may_be_registered_before_the_start(tmp_path: Path, backend: str) -> None:
    """A worker that is at its end serves until all have come, as with torch's own backend."""
    assert run(tmp_path, SHUTS_DOWN_AT_EXIT, backend) == "True 0\n"


@pytest.mark.parametrize("engine", ENGINES)
def test_answers_sent_before_a_peer_leaves_arrive(tmp_path: Path, engine: str) -> None:
    """Several threads read the answers while another thread notices the end of the connection."""
    with Workers(2, seconds=120) as workers:
        caller, callee = workers
        caller.call(join, f"file://{tmp_path}/store", engine, dynamic=True)
        for _ in range(10):
            callee.call(join, f"file://{tmp_path}/store", engine, dynamic=True)
            callee.call(steps.call, "worker0")  # so worker0 learns the new worker
            before = callee.call(metric, "agent.requests_received")
            calling = caller.start(make_calls, "worker1")
            callee.call(leave_after_answers, before + CALLS)
            assert calling.result() == list(range(CALLS))
        caller.call(steps.leave)
