"""Interceptors written in Python: what they see, what they refuse, and how they end."""

from __future__ import annotations

import collections
import contextlib
import gc
import operator
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from agents_kit import (
    AT_ONCE,
    error_of,
    identity,
    in_worker,
    make,
    no_current_agent,
    start,
    tasks,
    wait_until_gone,
)
from torch.distributed import rpc

from rpc_backends_agents import _C, CallInterceptor, intercept
from rpc_backends_core import RefusedError
from support import steps
from support.packages import write_package
from support.workers import WorkerContext, WorkerError, Workers


class Policy(CallInterceptor):
    """Refuses `operator.sub`, and fails for `operator.mul`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def on_outgoing(self, call: Any) -> None:
        self.look(call)

    def look(self, call: Any) -> None:
        self.seen.append((call.direction, call.peer, call.function))
        if call.function == "_operator.sub":
            raise RefusedError(f"'{call.worker}' does not run {call.function} for '{call.peer}'")
        if call.function == "_operator.mul":
            raise KeyError("no rule")


class IncomingPolicy(Policy):
    """Does the same as `Policy`, for calls that arrive."""

    on_outgoing = CallInterceptor.on_outgoing

    def on_incoming(self, call: Any) -> None:
        self.look(call)


class Observer(CallInterceptor):
    """Keeps the calls that have ended."""

    def __init__(self) -> None:
        self.ended: SimpleQueue[tuple[Any, float, str | None]] = SimpleQueue()

    def on_end(self, call: Any, seconds: float, error: str | None) -> None:
        self.ended.put((call, seconds, error))


@contextlib.contextmanager
def two_agents(
    at_a: CallInterceptor | None = None, at_b: CallInterceptor | None = None
) -> Iterator[Any]:
    """Start agents "a" and "b"; "a" makes this process's calls. Yields both."""
    agents = [make(_C.MemoryTransport(), "a", 0), make(_C.MemoryTransport(), "b", 1)]
    addresses = [agent.listen() for agent in agents]
    for me, peer in ((0, 1), (1, 0)):
        agents[me].learn(peer, "ab"[peer], addresses[peer])
        agents[me].add_member("ab"[peer], peer)
    fronts = [
        agent if interceptor is None else intercept(agent, interceptor, name="policy")
        for agent, interceptor in zip(agents, (at_a, at_b), strict=True)
    ]
    start(fronts[1])
    start(fronts[0])
    try:
        yield fronts
    finally:
        no_current_agent()
        for front in fronts:
            front.shutdown()


@in_worker
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_a_refused_call_fails_with_the_policy_text(me: WorkerContext, direction: str) -> None:
    policy = Policy() if direction == "outgoing" else IncomingPolicy()
    with two_agents(*([policy] if direction == "outgoing" else [None, policy])) as agents:
        assert rpc.rpc_sync("b", operator.add, args=(1, 2)) == 3
        worker, peer = ("a", "b") if direction == "outgoing" else ("b", "a")
        error = error_of(rpc.rpc_async("b", operator.sub, args=(1, 2)))
        assert f"'{worker}' does not run _operator.sub for '{peer}'" in error
        metrics = agents[0 if direction == "outgoing" else 1].get_metrics()
    assert policy.seen == [
        (direction, peer, "_operator.add"),
        (direction, peer, "_operator.sub"),
    ]
    assert metrics["policy.refused"] == "1"


@in_worker
def test_a_policy_that_fails_refuses_the_call(me: WorkerContext) -> None:
    with two_agents(None, IncomingPolicy()):
        error = error_of(rpc.rpc_async("b", operator.mul, args=(1, 2)))
        assert "IncomingPolicy.on_incoming failed: KeyError: 'no rule'" in error
        assert rpc.rpc_sync("b", operator.add, args=(1, 2)) == 3


@in_worker
def test_a_call_shows_its_properties(me: WorkerContext) -> None:
    observer = Observer()
    with two_agents(observer):
        rpc.rpc_sync("b", identity, args=(torch.zeros(3),), timeout=20)
        call, seconds, error = observer.ended.get(timeout=AT_ONCE)
    assert (call.direction, call.type, call.worker) == ("outgoing", "PYTHON_CALL", "a")
    assert (call.peer, call.peer_id, call.timeout) == ("b", 1, 20.0)
    assert (call.function, call.tensors, call.tensor_bytes) == ("agents_kit.identity", 1, 12)
    assert call.payload_bytes > 0
    assert 0 < seconds < AT_ONCE
    assert error is None


@in_worker
def test_the_end_of_a_failed_call_has_its_error(me: WorkerContext) -> None:
    observer = Observer()
    with two_agents(None, observer):
        error_of(rpc.rpc_async("b", operator.truediv, args=(1, 0)))
        # Torch answers with the exception as a value, so for the agent the call has not failed.
        call, _, error = observer.ended.get(timeout=AT_ONCE)
        assert (call.direction, call.function, error) == ("incoming", "_operator.truediv", None)
        error_of(rpc.rpc_async("b", torch.add, args=(torch.ones(2), torch.ones(3))))
        call, _, error = observer.ended.get(timeout=AT_ONCE)
        assert call.function == "torch.ops.aten.add"
        assert "must match" in str(error)


@in_worker
def test_rrefs_and_autograd_pass_unseen(me: WorkerContext) -> None:
    policy = Policy()
    with two_agents(policy):
        rref = rpc.remote("b", operator.add, args=(1, 2))
        assert rref.to_here() == 3
        del rref
    assert policy.seen == [("outgoing", "b", "_operator.add")]


@in_worker
def test_a_forked_child_ends_without_the_thread(me: WorkerContext) -> None:
    policy = Policy()
    with two_agents(policy):
        rpc.rpc_sync("b", operator.add, args=(1, 2))
        child = os.fork()
        if child == 0:
            policy._native.stop()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert rpc.rpc_sync("b", operator.add, args=(1, 2)) == 3


@in_worker
def test_the_interceptor_is_freed_after_shutdown(me: WorkerContext) -> None:
    policy = Policy()
    threads = tasks()
    with two_agents(policy):
        rpc.rpc_sync("b", operator.add, args=(1, 2))
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None
    wait_until_gone(threads)


EXAMPLE = Path(__file__).parents[3] / "examples" / "call_policy" / "rpc_call_policy.py"
#: The example's policy, changed to run at the caller: TENSORPIPE shows interceptors no calls that arrive.
AT_THE_CALLER = EXAMPLE.read_text().replace("on_incoming", "on_outgoing")


def only_modules(me: WorkerContext, modules: str) -> None:
    os.environ["RPC_MODULES"] = modules


def outcome(me: WorkerContext, function: Any, *arguments: Any) -> str:
    try:
        return str(rpc.rpc_sync("worker1", function, args=arguments, timeout=20))
    except RuntimeError as error:
        return str(error)


def remote_outcome(me: WorkerContext, function: Any) -> str:
    """Create an RRef on the other worker, and wait for its value without a limit."""
    try:
        return str(rpc.remote("worker1", function).to_here(timeout=0))
    except RuntimeError as error:
        return str(error)


def policy_package(folder: Path, policy: str) -> Path:
    """Write the example's package, with this code."""
    return write_package(
        folder,
        "rpc-call-policy",
        modules={"rpc_call_policy.py": policy},
        entry_points={"rpc.backends.hooks": {"call_policy": "rpc_call_policy"}},
    )


def count_letters(me: WorkerContext, text: str) -> list[tuple[str, int]]:
    """Call a method through an RRef."""
    rref = rpc.remote("worker1", collections.Counter, args=(text,))
    counted: list[tuple[str, int]] = rref.rpc_sync().most_common()
    assert rref.to_here() == collections.Counter(text)
    return counted


@pytest.mark.parametrize("end", ["shutdown", "exit"])
@pytest.mark.parametrize("backend", ["TENSORPIPE", "SOCKETS"])
def test_the_example_policy_refuses_functions(
    tmp_path: Path, sockets_package: Path, backend: str, end: str
) -> None:
    at_the_caller = backend == "TENSORPIPE"
    package = policy_package(tmp_path, AT_THE_CALLER if at_the_caller else EXAMPLE.read_text())
    with Workers(2) as workers:
        workers.run(steps.put_on_path, sockets_package)
        workers.run(steps.put_on_path, package)
        workers.run(only_modules, "_operator,collections")
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        assert workers[0].call(outcome, operator.add, 1, 2) == "3"
        assert "does not run 'posix.getcwd'" in workers[0].call(outcome, os.getcwd)
        assert workers[0].call(count_letters, "aba") == [("a", 2), ("b", 1)]
        if end == "shutdown":
            workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0]


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_to_here_raises_the_refusal_of_a_policy(tmp_path: Path, backend: str) -> None:
    with Workers(2, seconds=60) as workers:
        workers.run(steps.put_on_path, policy_package(tmp_path, EXAMPLE.read_text()))
        workers.run(only_modules, "_operator")
        workers.run(steps.join, f"file://{tmp_path}/store", backend=backend)
        refusals = {workers[0].call(remote_outcome, os.getcwd) for _ in range(20)}
        assert refusals == {"worker1 does not run 'posix.getcwd' for worker0"}
        workers.run(steps.leave)


def test_a_policy_for_calls_that_arrive_is_refused_on_tensorpipe(tmp_path: Path) -> None:
    """TENSORPIPE does not show them, so the policy would let every call through."""
    with Workers(1) as workers:
        workers.run(steps.put_on_path, policy_package(tmp_path, EXAMPLE.read_text()))
        with pytest.raises(
            WorkerError, match="'policy' decides calls that arrive, and this backend"
        ):
            workers.run(steps.join, f"file://{tmp_path}/store")
