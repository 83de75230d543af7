"""Methods that are called through RRefs and RemoteModules have their own names, on each backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule

from rpc_backends_inspect import causes, workers
from rpc_backends_inspect.groups import grouped
from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers

#: What the callee's methods wait for, and what must stay alive.
DONE = threading.Event()
HELD: list[Any] = []


class Learner:
    """A class whose methods RPC calls."""

    class Inner:
        """A class in a class."""

        def name(self) -> str:
            return "inner"

    def add(self, number: int) -> int:
        return number + 1

    @rpc.functions.async_execution
    def later(self, number: int) -> torch.futures.Future[int]:
        future: torch.futures.Future[int] = torch.futures.Future()
        future.set_result(number)
        return future

    def wait(self) -> bool:
        return DONE.wait(60)


def call_methods(me: WorkerContext, to: str) -> None:
    held = rpc.remote(to, Learner)
    assert held.rpc_sync().add(1) == 2
    assert held.rpc_async().add(1).wait() == 2
    assert held.remote().add(1).to_here() == 2
    assert held.rpc_sync().later(3) == 3
    assert rpc.remote(to, Learner.Inner).rpc_sync().name() == "inner"
    module = RemoteModule(f"{to}/cpu", torch.nn.Linear, args=(2, 2))
    module.remote_parameters()  # another thread than that of the first call may create the module
    assert module.forward(torch.ones(2)).shape == (2,)
    HELD.extend([held, module])


def call_own_object(me: WorkerContext) -> None:
    assert rpc.RRef(Learner()).rpc_sync().add(1) == 2


def wait_in_method(me: WorkerContext, to: str) -> None:
    held = rpc.remote(to, Learner)
    HELD.extend([held, held.rpc_async(timeout=0).wait()])


def finish(me: WorkerContext) -> None:
    DONE.set()
    HELD.clear()


@pytest.fixture(scope="module", params=["TENSORPIPE", "ZEROMQ", "UCX"])
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp(request.param)
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as started:
        started.run(steps.join, f"file://{folder}/store", backend=request.param)
        yield started
        started.run(finish)
        started.run(steps.leave)


def recorded(two: Workers, index: int, *, incoming: bool) -> list[str]:
    """Return the names of the functions that a worker has called, or that others have called there."""
    (state,) = workers.running(pids=[two[index].pid])
    assert not state.problem
    return [call.function for call in state.recent if call.incoming == incoming and call.function]


NAMES = [
    *[f"{__name__}.Learner.add"] * 3,
    f"{__name__}.Learner.later",
    f"{__name__}.Learner.Inner.name",
    "torch.nn.modules.linear.Linear.forward",
]


def methods(functions: list[str]) -> list[str]:
    last = {"add", "later", "name", "forward", "_local_invoke", "_remote_forward"}
    return [name for name in functions if name.rpartition(".")[2] in last]


def test_methods_have_their_own_names(two: Workers, request: pytest.FixtureRequest) -> None:
    two[0].call(call_methods, "worker1")
    # The record of remote() ends with an acknowledgement, which may come after the value.
    wait_until(lambda: len(methods(recorded(two, 0, incoming=False))) == len(NAMES))
    assert sorted(methods(recorded(two, 0, incoming=False))) == sorted(NAMES)
    if "TENSORPIPE" not in request.node.callspec.params.values():  # it records no arriving calls
        wait_until(lambda: len(methods(recorded(two, 1, incoming=True))) == len(NAMES))
        assert sorted(methods(recorded(two, 1, incoming=True))) == sorted(NAMES)


def test_a_method_of_an_own_object_has_its_name_without_its_class(two: Workers) -> None:
    """No message says the class: the caller is the owner."""
    two[1].call(call_own_object)
    assert recorded(two, 1, incoming=False)[-1] == "RRef.add"


def test_a_slow_method_is_named_with_its_line(two: Workers) -> None:
    two[0].call(wait_in_method, "worker1")

    def slow() -> str:
        states = workers.running(pids=[worker.pid for worker in two])
        shown = [cause for group in grouped(states) for cause in causes.explain(group)]
        return shown[0].text if shown else ""

    wait_until(lambda: "`wait`; there, 'worker1' is at wait (test_method_names.py:" in slow())
