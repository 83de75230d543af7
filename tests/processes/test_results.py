"""What a caller gets if it cannot unpickle a result, and the texts of exceptions."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

BACKENDS = ("TENSORPIPE", "ZEROMQ", "UCX")
#: A text that torch decodes as `unicode_escape`, which fails at its \N.
TEXT = "C:\\New is not \\N{x}, é or \udc80"


def define(me: WorkerContext, name: str) -> None:
    """Make a module; its class exists only where ``name`` is not empty."""
    module = sys.modules["theirs"] = types.ModuleType("theirs")
    if name:
        setattr(module, name, type(name, (), {"__module__": "theirs"}))


def record(me: WorkerContext) -> None:
    """Turn the recorder on."""
    os.environ["RPC_BACKENDS_RECORDER"] = "on"


def make_theirs() -> Any:
    """Return an object of a class that the caller does not have."""
    return sys.modules["theirs"].Only()


def raise_text() -> None:
    """Raise an exception whose text has no valid escape sequences."""
    raise ValueError(TEXT)


def make_storage() -> Any:
    """Return a storage, which torch cannot unpickle."""
    return torch.UntypedStorage(4)


def return_error() -> AttributeError:
    """Return an exception as a value."""
    return AttributeError("a value")


def error_of(me: WorkerContext, how: str, function: Any, *args: Any) -> tuple[list[str], str]:
    """Call worker1; return the classes and the text of the error."""
    calls = {
        "rpc_sync": lambda: rpc.rpc_sync("worker1", function, args=args),
        "rpc_async": lambda: rpc.rpc_async("worker1", function, args=args).wait(),
        "to_here": lambda: rpc.remote("worker1", function, args=args).to_here(),
    }
    try:
        result = calls[how]()
    except Exception as error:
        return [one.__name__ for one in type(error).__mro__], str(error)
    raise AssertionError(f"returned {result!r}")


@pytest.fixture(scope="module", params=BACKENDS)
def caller(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """Yield the first of two workers; only the second one has ``theirs.Only``."""
    with Workers(2, seconds=240) as workers:
        url = f"file://{tmp_path_factory.mktemp('results')}/store"
        if request.param == "TENSORPIPE":  # with the recorder, its agent knows who has answered
            workers.run(record)
        workers.run(steps.join, url, backend=request.param)
        workers[0].call(define, "")
        workers[1].call(define, "Only")
        yield workers[0]
        workers.run(steps.leave)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_a_result_of_an_unknown_class_is_an_error(caller: Any, how: str) -> None:
    types_, text = caller.call(error_of, how, make_theirs)
    assert ("ResultError" if how == "to_here" else "RuntimeError") in types_
    assert "worker 'worker0' cannot unpickle the result that it got from 'worker1'" in text
    assert "module 'theirs' has no 'Only' on 'worker0'" in text


@pytest.mark.slow
def test_a_storage_as_a_result_is_an_error(caller: Any) -> None:
    _, text = caller.call(error_of, "rpc_sync", make_storage)
    assert "cannot unpickle the result that it got from 'worker1': AttributeError: " in text


@pytest.mark.slow
def test_an_exception_may_be_a_result(caller: Any) -> None:
    assert str(caller.call(steps.call, "worker1", return_error)) == "a value"


def returned(me: WorkerContext, value: str) -> str:
    """Call with the variable set; return the type of the result."""
    os.environ["RPC_BACKENDS_UNPICKLING_ERRORS"] = value
    try:
        return type(rpc.rpc_sync("worker1", make_theirs)).__name__
    finally:
        del os.environ["RPC_BACKENDS_UNPICKLING_ERRORS"]


@pytest.mark.slow
def test_a_variable_returns_the_error_as_torch_does(caller: Any) -> None:
    assert caller.call(returned, "return") == "AttributeError"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "to_here"])
def test_any_text_of_an_exception_arrives(caller: Any, how: str) -> None:
    types_, text = caller.call(error_of, how, raise_text)
    assert "ValueError" in types_
    assert "UnicodeDecodeError" not in text
    assert "ValueError: C:\\New is not \\N{x}, é or " in text
