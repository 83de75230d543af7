"""An exception on a thread of an agent fails at most one call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_kit import (
    TIME_LIMIT,
    a_request,
    error_of,
    eventually,
    in_worker,
    logged,
    on_wire,
    two_agents,
)
from torch.distributed import rpc

from rpc_backends_agents import _C


def raising(*_: Any) -> None:
    raise ValueError("a broken callback")


def works() -> bool:
    return bool(rpc.rpc_sync("a", torch.add, args=(torch.ones(2), 1)).sum() == 4)


def contained_errors(agent: Any) -> int:
    return int(agent.get_metrics()["agent.contained_errors"])


class Unprintable(BaseException):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


# --- callbacks ------------------------------------------------------------------------------------


@in_worker
def test_an_exception_in_the_lost_callback_is_logged_and_counted(me: Any) -> None:
    with on_wire() as (agent, wire), logged() as lines:
        agent.on_lost(raising)
        before = contained_errors(agent)
        future, _ = a_request(wire)
        wire.inbox.lost(1, "gone")
        assert "gone" in error_of(future)
        # The callback runs after the calls have failed.
        eventually(lambda: contained_errors(agent) > before, "the error is counted")
        assert works()
        assert any("ValueError: a broken callback" in line for line in lines)


@in_worker
def test_an_exception_in_the_lookup_callback_is_logged(me: Any) -> None:
    with two_agents() as (agent, _), logged() as lines:
        agent.on_unknown_member(raising)
        with pytest.raises(RuntimeError, match="Unknown destination worker c"):
            agent.get_worker_info("c")
        assert any("ValueError: a broken callback" in line for line in lines)


@in_worker
def test_an_exception_in_the_log_loses_one_line(me: Any) -> None:
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        with on_wire() as (_, wire):
            _C.send_warnings_to(raising)
            wire.inbox.deliver(1, [b"x"])
            wire.wait_until(lambda: wire.rejected)
            assert works()
    finally:
        sys.unraisablehook = hook


@in_worker
def test_an_exception_in_a_calls_callback_affects_no_other(me: Any) -> None:
    # If the creation of an RRef fails, torch's RRefContext throws in the callback of that call.
    with on_wire() as (agent, wire):
        before = contained_errors(agent)
        rref = rpc.remote("b", torch.add, args=(torch.ones(2), 1))
        wire.request()
        wire.inbox.lost(1, "gone")
        eventually(lambda: contained_errors(agent) > before, "the error is counted")
        assert works()
        del rref


# --- exceptions of a transport --------------------------------------------------------------------


@in_worker
@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3), Unprintable()])
def test_an_exception_of_a_transport_fails_the_call(me: Any, error: BaseException) -> None:
    with on_wire() as (_, wire):
        wire.fail = error
        assert type(error).__name__ in error_of(a_call())
        assert works()


@in_worker
def test_an_exception_in_forget_still_removes_the_member(me: Any) -> None:
    def fail(peer: int) -> None:
        raise OSError("cannot close")

    with on_wire() as (agent, wire), logged() as lines:
        future, _ = a_request(wire)
        wire.forget = fail  # type: ignore[method-assign]
        agent.remove_member(1, "worker 'b' has left the group")
        assert "failed: worker 'b' has left the group" in error_of(future)
        assert [info.name for info in agent.get_worker_infos()] == ["a"]
    assert any("OSError: cannot close" in line for line in lines)


def a_call() -> Any:
    return rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1))


@in_worker
def test_an_answer_that_cannot_be_sent_fails_its_call(me: Any) -> None:
    with on_wire() as (agent, wire):
        _, frame = a_request(wire)
        wire.fail = ValueError("too large for me")
        wire.fails = lambda reply: reply and wire.tried == 2
        wire.inbox.deliver(1, frame)
        (peer, parts, reply) = wire.wait_until(lambda: wire.sent[1:])[0]
        assert (peer, reply) == (1, True)
        assert b"the answer cannot be sent: ValueError: too large for me" in parts[0]
        assert not wire.rejected
        assert agent.get_metrics()["agent.unsent_answers"] == "1"


@in_worker
def test_if_the_error_cannot_be_sent_the_connection_closes(me: Any) -> None:
    with on_wire() as (agent, wire), logged() as lines:
        _, frame = a_request(wire)
        wire.fail = ValueError("a broken pipe")
        wire.fails = lambda reply: reply
        # A peer of its own, because the same line about a peer is logged once per second at most.
        agent.add_member("d", 4)
        wire.inbox.deliver(4, frame)
        wire.wait_until(lambda: wire.rejected)
        assert wire.rejected == [(4, "an answer cannot be sent: ValueError: a broken pipe")]
        assert agent.get_metrics()["agent.unsent_answers"] == "2"
        assert any("an answer to 'd' cannot be sent: ValueError" in line for line in lines)


@in_worker
def test_a_peer_that_does_not_read_blocks_no_other(me: Any) -> None:
    with on_wire() as (agent, wire):
        agent.add_member("c", 2)
        send, stuck = wire.send, []

        def send_but_to_b(peer: int, parts: Any, reply: bool) -> None:
            if peer == 1:
                stuck.append(peer)
                wire.gate.wait(TIME_LIMIT)
            send(peer, parts, reply)

        wire.send = send_but_to_b  # type: ignore[method-assign]
        passed, wire.gate = wire.gate, type(wire.gate)()
        a_call()
        eventually(lambda: stuck, "the call to b is blocked")
        wire.gate, blocked = passed, wire.gate
        rpc.rpc_async("c", torch.add, args=(torch.ones(2), 1))
        assert wire.wait_until(lambda: wire.sent)[0][0] == 2
        agent.shutdown()
        assert wire.closed
        blocked.set()


# --- threads that cannot start --------------------------------------------------------------------

#: Makes pthread_create fail as it does where there are too many threads.
NO_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int no_threads = 0;
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* with) {
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_create");
  return no_threads ? EAGAIN : real(thread, attributes, run, with);
}
"""

WITHOUT_THREADS = """
import ctypes, sys
import torch
from agents_kit import two_agents, identity
from torch.distributed import rpc

def nested(depth):
    return 1 + rpc.rpc_sync("b" if depth % 2 else "a", nested, args=(depth - 1,)) if depth else 0

no_threads = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "no_threads")
with two_agents() as (one, other):
    assert rpc.rpc_sync("b", identity, args=(7,)) == 7
    no_threads.value = 1
    # More calls than threads, also to this worker; one of them times out.
    futures = [rpc.rpc_async(to, identity, args=(i,)) for i in range(20) for to in ("a", "b")]
    late = rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.001)
    assert [future.wait() for future in futures] == [i for i in range(20) for _ in range(2)]
    nests = [rpc.rpc_async("b", nested, args=(1,)) for _ in range(3)]
    no_threads.value = 0
    assert [future.wait() for future in nests] == [1] * 3
    assert rpc.rpc_sync("b", nested, args=(3,)) == 3
    try:
        assert late.wait().tolist() == [2, 2]
    except RuntimeError as error:
        assert "set timeout (1 ms)" in str(error), error
    print("contained", one.get_metrics()["agent.contained_errors"])
"""


TIMEOUT_AT_SHUTDOWN = """
import ctypes, sys, threading
import torch
from agents_kit import TIME_LIMIT, error_of, eventually, on_wire
from torch.distributed import rpc

def call():
    return rpc.rpc_async("b", torch.add, args=(torch.ones(2), 1), timeout=0.05)

def block(_):
    # If the call ends before it has its callback, torch runs that on the main thread.
    if threading.current_thread() is not threading.main_thread():
        entered.set()
        released.wait(TIME_LIMIT)

no_threads = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "no_threads")
entered, released = threading.Event(), threading.Event()
calls = 0
with on_wire() as (agent, _):
    while not entered.is_set():
        calls += 1
        blocked = call().then(block)
        eventually(lambda: entered.is_set() or blocked.done(), "the first timeout")
    # The thread that ends the calls is busy, and no other one can start.
    no_threads.value = 1
    late = call()
    calls += 1
    late.then(lambda _: released.set())
    eventually(lambda: agent.get_metrics()["agent.timeouts"] == str(calls), "the second timeout")
no_threads.value = 0
released.set()
assert late.done(), "the call has not ended"
assert "set timeout (50 ms)" in error_of(late)
traffic = agent.traffic()
assert traffic.sent == traffic.answered == calls, traffic
print("contained", agent.get_metrics()["agent.contained_errors"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(WITHOUT_THREADS, id="running"),
        pytest.param(TIMEOUT_AT_SHUTDOWN, id="shutdown"),
    ],
)
def test_no_call_is_lost_while_no_thread_can_start(tmp_path: Path, script: str) -> None:
    library = tmp_path / "no_threads.so"
    source = tmp_path / "no_threads.c"
    source.write_text(NO_THREADS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", script, library],
        env={
            "LD_PRELOAD": str(library),
            "PYTHONPATH": str(Path(__file__).parent),
            # The recorder stands in front of one agent of a process, and this process has two.
            "RPC_BACKENDS_RECORDER": "off",
        },
        capture_output=True,
        text=True,
        timeout=10 * TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.removeprefix("contained ")) > 0


# --- forks ----------------------------------------------------------------------------------------

FORKED = """
import multiprocessing, os, sys
import torch
from agents_kit import on_wire, two_agents, error_of
from torch.distributed import rpc

def call(to):
    return rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]

def cannot_call():
    try:
        call("a")
    except RuntimeError as error:
        assert "forked from the worker's" in str(error), error
    else:
        raise AssertionError("the child can call")

def status(child):
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

context = multiprocessing.get_context("fork")
with two_agents() if sys.argv[1] == "memory" else on_wire() as (one, _):
    assert call("a")
    # A child that exits normally leaves this block, which shuts down the agents.
    ends = [status(lambda: None), status(cannot_call), status(lambda: os.execv("/bin/true", ["true"]))]
    ends.append(status(lambda: os._exit(0)))
    process = context.Process(target=len, args=((),))
    process.start()
    process.join()
    print(ends, process.exitcode, call("a"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["memory", "python"])
def test_a_forked_child_may_exit_in_any_way(transport: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, transport],
        env={"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=10 * TIME_LIMIT,
        check=False,
    )
    assert done.stdout == "[0, 0, 0, 0] 0 True\n", done.stderr
