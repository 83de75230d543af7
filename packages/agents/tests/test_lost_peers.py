"""Calls to a peer that is lost or forgotten, and calls at a stop: without memory, in another order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from agents_kit import TIME_LIMIT

import rpc_backends_agents

ROOT = Path(__file__).parents[3]

#: One allocation after the other fails; then the calls, which have no time-out, must end.
_COMMON = """
import ctypes, sys
import torch
from agents_kit import error_of, eventually, make, no_current_agent, start
from torch.distributed import rpc

fail_allocation = ctypes.CDLL(None).fail_allocation
library = ctypes.CDLL(sys.argv[1])
library.failing_transport_new.restype = ctypes.c_void_p
library.failing_transport_capsule_name.restype = ctypes.c_char_p
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
name = ctypes.c_char_p(library.failing_transport_capsule_name())

class FailingTransport:
    def __init__(self):
        self.handle = ctypes.c_void_p(library.failing_transport_new())

    def __rpc_transport__(self):
        return new_capsule(self.handle, name, None)

def started():
    transport = FailingTransport()
    agent = make(transport)
    agent.listen()
    agent.add_member("b", 1)
    start(agent)
    return agent, transport

def calls():
    return [rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0) for _ in range(3)]

def expect_to_end(agent, futures, number):
    # The program sees a future that torch completes in a callback.
    # One failed allocation may end one such callback early.
    # The calls end one after the other, and each is counted when its turn comes.
    def have_ended():
        traffic = agent.traffic()
        ended = sum(future.done() for future in futures) >= len(futures) - 1
        return ended and traffic.sent == traffic.answered
    eventually(have_ended, f"the end of the calls after allocation {number} has failed")
    assert agent.get_metrics()["agent.client_active_calls"] == "0", number
"""
_LOSE = """
agent, transport = started()
for number in range(1, 30):
    futures = calls()
    library.failing_transport_lose(transport.handle, 1, number)
    expect_to_end(agent, futures, number)
    library.failing_transport_find(transport.handle, 1)
    library.failing_transport_find(transport.handle, 1)
    def is_found():
        future = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.05)
        return "lost" not in error_of(future)
    eventually(is_found, "the peer is found")
no_current_agent()
agent.shutdown()
"""
_FORGET = """
agent, transport = started()
for number in range(2, 30):  # the first is that of the argument
    futures = calls()
    fail_allocation(number)
    try:
        agent.remove_member(1, "worker 'b' has left the group, and this is a long text")
    except MemoryError:
        pass
    fail_allocation(0)
    expect_to_end(agent, futures, number)
    agent.add_member("b", 1)
no_current_agent()
agent.shutdown()
"""
_STOP = """
import os
for number in range(1, 30):
    agent, transport = started()
    futures = calls()
    no_current_agent()
    fail_allocation(number)
    try:
        agent.shutdown()
    except MemoryError:
        pass
    fail_allocation(0)
    expect_to_end(agent, futures, number)
    def has_ended():
        names = []
        for thread in os.listdir("/proc/self/task"):
            try:
                names.append(open(f"/proc/self/task/{thread}/comm").read())
            except OSError:
                pass
        return "rpc-agent\\n" not in names
    eventually(has_ended, f"the end of the threads after allocation {number} has failed")
"""
_LATE = """
agent, transport = started()
older = calls()
library.failing_transport_jump(transport.handle, 5)
library.failing_transport_find(transport.handle, 1)  # number 6
eventually(lambda: library.failing_transport_peers_found(transport.handle) == 1, "the peer is found")
newer = calls()
library.failing_transport_jump(transport.handle, 3)
library.failing_transport_lose(transport.handle, 1, 0)  # number 5
eventually(lambda: all(future.done() for future in older), "the end of the older calls")
assert agent.get_metrics()["agent.client_active_calls"] == "3"
assert not any(future.done() for future in newer)
no_current_agent()
agent.shutdown()
"""


def _built(library: Path, source: Path, *options: str) -> Path:
    command = [
        "c++",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-shared",
        "-fPIC",
        "-pthread",
        *options,
    ]
    subprocess.run([*command, "-o", library, source], check=True)
    return library


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(_LOSE, id="lose"),
        pytest.param(_FORGET, id="forget"),
        pytest.param(_STOP, id="stop"),
    ],
)
def test_calls_end_after_each_failed_allocation(tmp_path: Path, script: str) -> None:
    _run(tmp_path, script)


@pytest.mark.slow
def test_a_loss_that_is_handled_after_the_peer_is_found_ends_the_older_calls_only(
    tmp_path: Path,
) -> None:
    _run(tmp_path, _LATE)


def _run(tmp_path: Path, script: str) -> None:
    failing = _built(tmp_path / "failing_new.so", ROOT / "tests" / "support" / "failing_new.cpp")
    transport = _built(
        tmp_path / "transport.so",
        Path(__file__).with_name("failing_transport.cpp"),
        f"-I{rpc_backends_agents.include_dir()}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    )
    done = subprocess.run(
        [sys.executable, "-c", _COMMON + script, transport],
        env={
            **os.environ,
            "LD_PRELOAD": str(failing),
            "PYTHONPATH": str(Path(__file__).parent),
            "RPC_BACKENDS_RECORDER": "off",
        },
        capture_output=True,
        text=True,
        timeout=10 * TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
