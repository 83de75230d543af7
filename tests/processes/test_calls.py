"""Timeouts of calls, and the errors of calls to a worker that has ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

BACKENDS = ("TENSORPIPE", "ZEROMQ", "UCX")
#: Longer than torch can represent; torch's own agent makes them negative.
LONG = (float("inf"), 1e10)


class Counter:
    """An object with a method for RRefs."""

    def return_one(self) -> int:
        """Return 1."""
        return 1


def calls_with(timeout: float) -> dict[str, Callable[[], Any]]:
    """Return each way to make a call with a timeout; each returns 1."""
    rref = rpc.remote("worker1", Counter)
    return {
        "rpc_sync": lambda: rpc.rpc_sync("worker1", int, args=(1,), timeout=timeout),
        "rpc_async": lambda: rpc.rpc_async("worker1", int, args=(1,), timeout=timeout).wait(),
        "remote": lambda: rpc.remote("worker1", int, args=(1,), timeout=timeout).to_here(),
        "to_here": lambda: rpc.remote("worker1", int, args=(1,)).to_here(timeout=timeout),
        "rref.rpc_sync": lambda: rref.rpc_sync(timeout).return_one(),
        "rref.rpc_async": lambda: rref.rpc_async(timeout).return_one().wait(),
        "rref.remote": lambda: rref.remote(timeout).return_one().to_here(),
    }


def results_with(me: WorkerContext, timeout: float) -> dict[str, Any]:
    """Make a call in each way; return the results, or the types and texts of errors."""
    results: dict[str, Any] = {}
    for way, call in calls_with(timeout).items():
        try:
            results[way] = call()
        except Exception as error:
            results[way] = f"{type(error).__name__}: {error}"
    return results


@pytest.fixture(scope="module", params=BACKENDS)
def caller(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """Yield the first of two workers."""
    with Workers(2, seconds=240) as workers:
        url = f"file://{tmp_path_factory.mktemp('calls')}/store"
        workers.run(steps.join, url, backend=request.param)
        yield workers[0]
        workers.run(steps.leave)


@pytest.mark.parametrize("timeout", LONG)
def test_a_timeout_longer_than_torchs_is_limited(caller: Any, timeout: float) -> None:
    assert set(caller.call(results_with, timeout).values()) == {1}


@pytest.mark.parametrize("timeout", [float("nan"), -2.0])
def test_a_timeout_that_is_no_duration_is_refused(caller: Any, timeout: float) -> None:
    errors = caller.call(results_with, timeout).values()
    assert len(errors) == 7
    assert all(f"ValueError: the timeout of the call is {timeout} s" in error for error in errors)


# --- tensors that cannot be sent ------------------------------------------------------------------


def make_compressed() -> torch.Tensor:
    """Return a tensor without a storage of its own."""
    return torch.eye(3).to_sparse_csr()


def make_list() -> list[int]:
    """Return an argument that can be sent."""
    return [1]


def make_meta() -> torch.Tensor:
    """Return a tensor without data."""
    return torch.ones(2, device="meta")


def error_with(me: WorkerContext, how: str, function: Any, *makers: Any) -> str:
    """Call worker1 with what ``makers`` return; return the text of the error."""
    args = tuple(make() for make in makers)
    try:
        if how == "rpc_sync":
            rpc.rpc_sync("worker1", function, args=args)
        else:
            rpc.remote("worker1", function, args=args).to_here()
    except RuntimeError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("how", ["rpc_sync", "to_here"])
def test_a_compressed_sparse_result_gets_help(caller: Any, how: str) -> None:
    error = caller.call(error_with, how, make_compressed)
    assert "a tensor in the result cannot be sent" in error
    assert ".to_sparse_coo(), before you return it" in error


@pytest.mark.parametrize("how", ["rpc_sync", "to_here"])
def test_a_meta_tensor_gets_help_in_both_directions(caller: Any, how: str) -> None:
    for error in (
        caller.call(error_with, how, make_meta),
        caller.call(error_with, how, len, make_meta),
    ):
        assert "on meta and has no data" in error
        assert "send its shape and dtype" in error


def make_opaque() -> torch.Tensor:
    """Return a tensor of MKL-DNN."""
    return torch.ones(3, 3).to_mkldnn()


def make_nested() -> torch.Tensor:
    """Return a nested tensor."""
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def echo_tensors(tensors: Any) -> int:
    """Return a number, so that only the argument is at fault."""
    return 1


def refused_calls(me: WorkerContext) -> list[str]:
    """Send a tensor of MKL-DNN in each way; return the errors, and the result of a last call."""
    opaque, texts = make_opaque(), []
    calls = [
        lambda: rpc.rpc_sync("worker1", torch.add, args=(opaque, 1)),
        lambda: rpc.rpc_sync("worker1", torch.cat, args=([opaque, opaque],)),
        lambda: rpc.rpc_async("worker1", torch.add, args=(1,), kwargs={"other": opaque}),
        lambda: rpc.rpc_sync("worker1", echo_tensors, args=({"deep": [opaque]},)),
        lambda: rpc.remote("worker1", echo_tensors, args=(opaque,)),
    ]
    for call in calls:
        try:
            call()
        except ValueError as error:
            texts.append(str(error))
    texts.append(str(rpc.rpc_sync("worker1", echo_tensors, args=(torch.ones(2),))))
    return texts


@pytest.mark.parametrize("how", ["rpc_sync", "to_here"])
def test_a_nested_tensor_is_refused_and_the_callee_lives_on(caller: Any, how: str) -> None:
    """Torch's TensorPipe agent ends the process on such a result."""
    error = caller.call(error_with, how, make_nested)
    assert "it is a nested tensor; send the list from .unbind()" in error
    assert caller.call(error_with, how, len, make_list) == "no error"


def test_a_tensor_of_mkldnn_is_refused_and_the_worker_lives_on(caller: Any) -> None:
    """Torch's TensorPipe agent ends the process on it."""
    *errors, last = caller.call(refused_calls)
    assert [error.partition(": ")[2] for error in errors] == 5 * [
        "its layout is Mkldnn; call .to_dense() before you send it"
    ]
    assert last == "1"


# --- a worker that has ended ----------------------------------------------------------------------


def end_at_once() -> None:
    """End the process."""
    os._exit(3)


def errors_of_calls(me: WorkerContext) -> dict[str, str]:
    """End worker1 in a call, and call it again in each way; return the texts of the errors."""
    rref = rpc.remote("worker1", Counter)
    assert rref.rpc_sync().return_one() == 1

    def call_back() -> str:
        seen: list[str] = []

        def look(done: Any) -> None:
            try:
                done.wait()
            except RuntimeError as error:
                seen.append(str(error))

        rpc.rpc_async("worker1", int, args=(1,)).then(look).wait()
        raise RuntimeError(*seen)

    ways: dict[str, Callable[[], Any]] = {
        "the last call": lambda: rpc.rpc_sync("worker1", end_at_once),
        "rpc_sync": lambda: rpc.rpc_sync("worker1", int, args=(1,)),
        "rank": lambda: rpc.rpc_sync(1, torch.add, args=(torch.ones(1), 1)),
        "rpc_async": lambda: rpc.rpc_async("worker1", int, args=(1,)).wait(),
        "callback": call_back,
        "to_here": lambda: rpc.remote("worker1", int, args=(1,)).to_here(),
        "rref": rref.to_here,
        "method": lambda: rref.rpc_sync().return_one(),
    }
    errors = {}
    for way, call in ways.items():
        try:
            call()
        except RuntimeError as error:
            errors[way] = str(error)
    return errors


@pytest.mark.parametrize("recorder", ["on", "off"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_of_calls_to_an_ended_worker_name_it(url: str, backend: str, recorder: str) -> None:
    with Workers(2, seconds=120, env={"RPC_BACKENDS_RECORDER": recorder}) as workers:
        workers.run(steps.join, url, backend=backend)
        errors = workers[0].call(errors_of_calls)
        assert len(errors) == 8
        # Without an agent of this project in front of it, TENSORPIPE's futures have the errors of torch.
        bare = {"rpc_async", "callback"} if backend == "TENSORPIPE" and recorder == "off" else set()
        unnamed = {way for way, text in errors.items() if "RPC to 'worker1' failed" not in text}
        assert unnamed == bare, errors
        if backend == "TENSORPIPE" and recorder == "off":
            assert "worker 'worker0' called builtins.int" in errors["rpc_sync"]
            assert "called the method 'return_one' of an RRef" in errors["method"]
        workers[0].call(steps.leave, graceful=False)
