"""What a caller gets if it cannot unpickle a result, and the texts of exceptions."""

from __future__ import annotations

import os
import sys
import traceback
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


#: A module that only worker1 has.
MISSING = """
class Value: pass
class Boom(Exception): pass
def raise_boom(): raise Boom("the cause at the callee")
"""


class Unreducible:
    """An object that pickle cannot take apart."""

    def __reduce__(self) -> Any:
        raise ValueError("cannot be taken apart")


class Unbuildable:
    """An object that only its sender can build."""

    def __reduce__(self) -> Any:
        return build_on, (rpc.get_worker_info().name,)


def build_on(name: str) -> str:
    """Fail on other workers than the named one."""
    if rpc.get_worker_info().name != name:
        raise ValueError("cannot be built here")
    return name


def make_missing() -> Any:
    """Return an object of a module that the caller does not have."""
    return sys.modules["missing"].Value()


def raise_missing() -> None:
    """Raise an exception of a module that the caller does not have."""
    sys.modules["missing"].raise_boom()


def raise_local() -> None:
    """Raise an exception whose class cannot be pickled."""

    class LocalError(Exception):
        pass

    raise LocalError("the cause at the callee")


def make_unreducible() -> Any:
    """Return what cannot be pickled."""
    return Unreducible()


def make_unbuildable() -> Any:
    """Return what the caller cannot unpickle."""
    return Unbuildable()


def give_back(value: Any) -> Any:
    """Return the argument."""
    return value


def add_missing(me: WorkerContext) -> None:
    """Make the module that the other worker does not have."""
    module = sys.modules["missing"] = types.ModuleType("missing")
    exec(MISSING, module.__dict__)


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


def own_list() -> Any:
    """Return a list, in an RRef of this worker."""
    return [1]


def make_own() -> Any:
    """Make an object of a class that only the caller has."""
    return sys.modules["theirs"].Own()


def error_of(me: WorkerContext, how: str, function: Any, *args: Any) -> tuple[list[str], str]:
    """Call worker1; return the classes and the text of the error."""
    made = {"unbuildable": Unbuildable, "storage": lambda: torch.UntypedStorage(4), "own": make_own}
    args = tuple(made[arg]() if arg in made else arg for arg in args)
    calls = {
        "method": lambda: rpc.remote("worker1", own_list).rpc_sync().append(*args),
        "rpc_sync": lambda: rpc.rpc_sync("worker1", function, args=args),
        "rpc_async": lambda: rpc.rpc_async("worker1", function, args=args).wait(),
        "to_here": lambda: rpc.remote("worker1", function, args=args).to_here(),
    }
    try:
        result = calls[how]()
    except Exception as error:
        return [class_.__name__ for class_ in type(error).__mro__], str(error)
    raise AssertionError(f"returned {result!r}")


def raise_plain() -> None:
    """Raise an exception."""
    raise ValueError("the cause at the callee")


def shown_error_of(me: WorkerContext, how: str) -> str:
    """Call worker1; return what Python shows of the error."""
    try:
        if how == "rpc_sync":
            rpc.rpc_sync("worker1", raise_plain)
        else:
            rpc.remote("worker1", raise_plain).to_here()
    except ValueError:
        return traceback.format_exc()
    raise AssertionError("no error")


@pytest.fixture(scope="module", params=BACKENDS)
def caller(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """Yield the first of two workers; it has ``theirs.Own``, and the second one ``theirs.Only``."""
    with Workers(2, seconds=240) as workers:
        url = f"file://{tmp_path_factory.mktemp('results')}/store"
        if request.param == "TENSORPIPE":  # with the recorder, its agent knows who has answered
            workers.run(record)
        workers.run(steps.join, url, backend=request.param)
        workers[0].call(define, "Own")
        workers[1].call(define, "Only")
        workers[1].call(add_missing)
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


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_a_result_of_a_missing_module_names_both_workers(caller: Any, how: str) -> None:
    _, text = caller.call(error_of, how, make_missing)
    assert "worker 'worker0' cannot unpickle the result that it got from 'worker1'" in text
    assert "'worker0' cannot import the module 'missing', which has missing.Value" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_an_exception_of_a_missing_module_keeps_its_text(caller: Any, how: str) -> None:
    types_, text = caller.call(error_of, how, raise_missing)
    assert "RuntimeError" in types_
    assert "worker 'worker0' cannot unpickle the exception" in text
    assert "raised on 'worker1'" in text
    assert "missing.Boom: the cause at the callee" in text
    assert "in raise_missing" in text  # the traceback of the callee


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_an_exception_of_a_local_class_keeps_its_text(caller: Any, how: str) -> None:
    _, text = caller.call(error_of, how, raise_local)
    assert "name=worker1" in text
    assert "LocalError: the cause at the callee" in text
    assert "cannot pickle the class" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_a_result_that_cannot_be_pickled_names_the_callee(caller: Any, how: str) -> None:
    _, text = caller.call(error_of, how, make_unreducible)
    assert "worker 'worker1' cannot pickle the result" in text
    assert "Unreducible: ValueError: cannot be taken apart" in text
    assert "in __reduce__" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_a_result_that_fails_to_unpickle_names_both_workers(caller: Any, how: str) -> None:
    _, text = caller.call(error_of, how, make_unbuildable)
    assert "worker 'worker0' cannot unpickle the result that it got from 'worker1'" in text
    assert "ValueError: cannot be built here" in text
    assert "build_on" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_an_argument_that_fails_to_unpickle_names_the_callee(caller: Any, how: str) -> None:
    _, text = caller.call(error_of, how, give_back, "unbuildable")
    assert "worker 'worker1' cannot unpickle the call of" in text
    assert "give_back: ValueError: cannot be built here" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "to_here"])
def test_an_argument_of_an_unknown_class_names_the_callee(caller: Any, how: str) -> None:
    types_, text = caller.call(error_of, how, give_back, "own")
    assert "AttributeError" in types_ or text.startswith("AttributeError: ")  # as in torch
    assert "worker 'worker1' cannot unpickle the call of" in text
    assert "give_back: module 'theirs' has no 'Own' on 'worker1'" in text


@pytest.mark.slow
def test_a_storage_as_an_argument_names_the_callee(caller: Any) -> None:
    _, text = caller.call(error_of, "rpc_sync", give_back, "storage")
    assert "worker 'worker1' cannot unpickle the call of" in text
    assert "give_back: AttributeError: " in text


@pytest.mark.slow
@pytest.mark.parametrize("argument", ["own", "unbuildable"])
def test_a_method_that_cannot_be_unpickled_is_named(caller: Any, argument: str) -> None:
    _, text = caller.call(error_of, "method", None, argument)
    assert "worker 'worker1' cannot unpickle the call of the method 'append' of an RRef: " in text
    assert "_local_invoke" not in text.partition("Traceback")[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rpc_sync", "to_here"])
def test_an_error_of_a_function_ends_with_its_own_text(caller: Any, how: str) -> None:
    text = caller.call(shown_error_of, how)
    assert text.rstrip().endswith("ValueError: the cause at the callee")
    assert "rpc_backends_core" not in text
