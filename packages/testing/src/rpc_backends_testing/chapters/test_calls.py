"""Calls: functions run on the callee, once each, and their results or errors come back."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext
from rpc_backends_testing.checks import (
    WAYS,
    Call,
    asynchronous,
    doing,
    expect,
    fact,
    remote,
    sync,
)
from rpc_backends_testing.marks import in_group, requirement

pytestmark = requirement("calls")

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
Way = Callable[..., Call]
torchscript = requirement("calls", capability=Capability.TORCHSCRIPT)

#: The timeout in seconds of each of many calls, so that a lost call fails instead of hanging.
LOST = 12.0
#: Seconds that one thread waits for another before the test fails.
WAIT = 10.0


# --- functions that are called -------------------------------------------------------------------


def add(left: int, right: int) -> int:
    return left + right


def nothing() -> None:
    pass


def echo(value: Any) -> Any:
    return value


def keywords(first: int, *rest: int, named: int = 0, **more: int) -> list[Any]:
    return [first, rest, named, more]


def name_here() -> str:
    return str(rpc.get_worker_info().name)


def name_through(names: list[str]) -> list[str]:
    """Return the names of the workers that the call passes through, in order."""
    here = name_here()
    return [here, *rpc.rpc_sync(names[0], name_through, args=(names[1:],))] if names else [here]


def many_values(count: int) -> tuple[int, ...]:
    return tuple(range(count))


class Calculator:
    """Has a method of each kind."""

    start = 10

    def __init__(self, start: int) -> None:
        self.start = start

    def add(self, number: int) -> int:
        return self.start + number

    @classmethod
    def add_to_class(cls, number: int) -> int:
        return cls.start + number

    @staticmethod
    def double(number: int) -> int:
        return 2 * number

    def __call__(self, number: int) -> int:
        return self.start * number


_runs: Counter[int] = Counter()
_runs_lock = threading.Lock()


def run(number: int) -> int:
    """Return ``number``, and count that this was called with it."""
    with _runs_lock:
        _runs[number] += 1
    return number


def runs() -> dict[int, int]:
    with _runs_lock:
        return dict(sorted(_runs.items()))


_arrived = (threading.Event(), threading.Event())


def meet(who: int) -> bool:
    """Wait for the call with the other number (0 or 1) and return whether it came."""
    _arrived[who].set()
    return _arrived[1 - who].wait(WAIT)


# --- plain calls ---------------------------------------------------------------------------------


@every_way
@in_group(2)
def test_builtin(me: WorkerContext, way: Way) -> None:
    """A builtin of torch runs on the callee and its result comes back.

    Builtins travel as SCRIPT_CALL and SCRIPT_REMOTE_CALL and need no Python on the callee.
    """
    ones = torch.ones(2, 3)
    expect(way("worker1", torch.add, args=(ones, 2))).gives(ones + 2)
    expect(way("worker1", torch.add, args=(ones, ones), kwargs={"alpha": 3})).gives(ones * 4)


@every_way
@in_group(2)
def test_python_function(me: WorkerContext, way: Way) -> None:
    """A Python function runs on the callee and its result comes back.

    Python functions travel as PYTHON_CALL and PYTHON_REMOTE_CALL, pickled.
    """
    expect(way("worker1", add, args=(1, 2))).gives(3)
    expect(way("worker1", name_here)).gives("worker1")
    expect(way("worker1", nothing)).gives(None)
    expect(way("worker1", many_values, args=(1000,))).gives(tuple(range(1000)))


@in_group(2)
def test_keyword_arguments(me: WorkerContext) -> None:
    """A Python function gets its positional and keyword arguments as they were passed."""
    for way in WAYS:
        call = way("worker1", keywords, args=(1, 2, 3), kwargs={"named": 4, "other": 5})
        expect(call).gives([1, (2, 3), 4, {"other": 5}])
        expect(way("worker1", keywords, kwargs={"first": 1})).gives([1, (), 0, {}])


@in_group(2)
def test_methods(me: WorkerContext) -> None:
    """Methods, class methods, static methods and callable objects can be called."""
    for way in WAYS:
        expect(way("worker1", Calculator(1).add, args=(2,))).gives(3)
        expect(way("worker1", Calculator.add_to_class, args=(2,))).gives(12)
        expect(way("worker1", Calculator.double, args=(2,))).gives(4)
        expect(way("worker1", Calculator, args=(5,))).satisfies(
            "a Calculator that starts at 5", lambda got: got.start == 5
        )
        expect(way("worker1", Calculator(3), args=(2,))).gives(6)


@every_way
@in_group(2)
def test_self(me: WorkerContext, way: Way) -> None:
    """A worker can call itself.

    Torch passes these calls to the agent like all others.
    """
    expect(way("worker0", name_here)).gives("worker0")
    expect(way("worker0", torch.add, args=(torch.ones(2), 1))).gives(torch.full((2,), 2.0))
    expect(way("worker0", int, args=("x",))).raises(ValueError, "invalid literal")


@in_group(3)
def test_callee(me: WorkerContext) -> None:
    """A program can name the callee by name, rank or WorkerInfo."""
    for way in WAYS:
        for callee in ("worker2", 2, rpc.get_worker_info("worker2")):
            expect(way(callee, name_here)).gives("worker2")


@in_group(2)
def test_large_text(me: WorkerContext) -> None:
    """A string of 1 MiB can be an argument and a result."""
    for way in WAYS:
        text = "0123456789abcdef" * (1 << 16)
        expect(way("worker1", echo, args=(text,))).satisfies("the same text", text.__eq__)


# --- TorchScript ---------------------------------------------------------------------------------


def _script(function: Callable[..., Any]) -> Any:
    """Compile a function when this module is imported, so that forked workers have it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


@_script
def script_add(left: torch.Tensor, right: int = 3) -> torch.Tensor:
    return left + right


@_script
def script_collect(values: dict[str, list[int]], factor: float) -> list[tuple[str, float]]:
    pairs: list[tuple[str, float]] = []
    for name, numbers in values.items():
        pairs.append((name, factor * sum(numbers)))
    return pairs


@_script
def script_refuse(number: int) -> int:
    if number > 0:
        raise ValueError("too large for a script")
    return number


@every_way
@torchscript
@in_group(2)
def test_torchscript_function(me: WorkerContext, way: Way) -> None:
    """A TorchScript function runs on the callee and its result comes back.

    These functions travel as SCRIPT_CALL and SCRIPT_REMOTE_CALL, by qualified name. The callee compiles
    them itself.
    """
    ones = torch.ones(2)
    expect(way("worker1", script_add, args=(ones, 4))).gives(ones + 4)
    expect(way("worker1", script_add, args=(ones,), kwargs={"right": 5})).gives(ones + 5)
    expect(way("worker1", script_add, args=(ones,))).gives(ones + 3)
    expect(way("worker0", script_add, args=(ones,))).gives(ones + 3)
    values = {"a": [1, 2], "b": [3]}
    expect(way("worker1", script_collect, args=(values, 2.0))).gives([("a", 6.0), ("b", 6.0)])


@every_way
@torchscript
@in_group(2)
def test_torchscript_error(me: WorkerContext, way: Way) -> None:
    """An error in a TorchScript function comes back with its text."""
    expect(way("worker1", script_refuse, args=(1,))).raises(Exception, "too large for a script")
    expect(way("worker1", script_refuse, args=(0,))).gives(0)


# --- nested calls --------------------------------------------------------------------------------


@every_way
@in_group(3)
def test_nested_through_a_third(me: WorkerContext, way: Way) -> None:
    """A function that runs for a caller can call a third worker."""
    expect(way("worker1", name_through, args=(["worker2"],))).gives(["worker1", "worker2"])
    names = ["worker2", "worker0"]
    expect(way("worker1", name_through, args=(names,))).gives(["worker1", *names])


@every_way
@in_group(2)
def test_nested_back_and_forth(me: WorkerContext, way: Way) -> None:
    """A function that runs for a caller can call the caller, which calls back, and so on.

    A worker that executes a request must go on serving other requests. Each request needs a thread, and a
    thread that waits for a response must not be the one that reads responses.
    """
    there_and_back = ["worker0", "worker1", "worker0"]
    expect(way("worker1", name_through, args=(there_and_back,))).gives(["worker1", *there_and_back])


@in_group(2)
def test_nested_deep(me: WorkerContext) -> None:
    """Calls can be nested 16 deep between two workers.

    Eight requests then wait in each worker. Torch's backends have 16 threads for requests by default.
    """
    path = ["worker0", "worker1"] * 8
    expect(sync("worker1", name_through, args=(path[:-1],))).gives(["worker1", *path[:-1]])


@in_group(2)
def test_nested_in_itself(me: WorkerContext) -> None:
    """A function that runs for a caller can call its own worker."""
    path = ["worker1", "worker1", "worker1"]
    expect(sync("worker1", name_through, args=(path,))).gives(["worker1", *path])


# --- many calls ----------------------------------------------------------------------------------


def _add_in_turn(thread: int, count: int, to: str) -> list[int]:
    return [
        rpc.rpc_sync(to, add, args=(1000 * thread, turn), timeout=LOST) for turn in range(count)
    ]


@in_group(2)
def test_many_threads(me: WorkerContext) -> None:
    """Several threads of a process can call at once, and each gets its own results."""

    def call() -> list[list[int]]:
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(_add_in_turn, thread, 50, "worker1") for thread in range(8)]
            return [each.result() for each in waiting]

    text = "50 times rpc_sync('worker1', add) from each of 8 threads"
    expect(doing(text, call)).gives([[1000 * n + turn for turn in range(50)] for n in range(8)])


def _in_flight(count: int, to: list[str], func: Callable[..., Any], right: Any) -> list[Any]:
    waiting = [
        rpc.rpc_async(to[n % len(to)], func, args=(n, right), timeout=LOST) for n in range(count)
    ]
    return [future.wait() for future in waiting]


@pytest.mark.parametrize("callees", [1, 2])
@in_group(3)
def test_thousands_in_flight(me: WorkerContext, callees: int) -> None:
    """Two thousand calls can be in flight from one process, and each gets its own result.

    Responses come in any order. The id of the message says which future a response completes.
    """
    to = [f"worker{1 + n}" for n in range(callees)]
    text = f"2000 times rpc_async({' or '.join(map(repr, to))}, add), all in flight"
    call = doing(text, lambda: _in_flight(2000, to, add, 7))
    expect(call).gives([n + 7 for n in range(2000)])


@in_group(2)
def test_thousands_of_tensors_in_flight(me: WorkerContext) -> None:
    """A thousand calls with tensors can be in flight from one process."""
    ones = torch.ones(3)

    def call() -> list[torch.Tensor]:
        waiting = [
            rpc.rpc_async("worker1", torch.mul, args=(ones, float(n)), timeout=LOST)
            for n in range(1000)
        ]
        return [future.wait() for future in waiting]

    text = "1000 times rpc_async('worker1', torch.mul), all in flight"
    expect(doing(text, call)).gives([ones * float(n) for n in range(1000)])


@every_way
@in_group(2)
def test_run_once(me: WorkerContext, way: Way) -> None:
    """Each call runs its function exactly once."""
    for number in range(300):
        expect(way("worker1", run, args=(number,), timeout=LOST)).gives(number)
    times = expect(sync("worker1", runs)).returns()
    wrong = {number: times.get(number, 0) for number in range(300) if times.get(number) != 1}
    expect(
        fact("those of 300 calls that did not run exactly once, with their numbers of runs", wrong)
    ).gives({})


@in_group(2)
def test_two_at_once(me: WorkerContext) -> None:
    """A worker executes two calls at the same time."""
    waiting = [rpc.rpc_async("worker1", meet, args=(who,)) for who in (0, 1)]
    text = "two calls, each of which waits until the other has begun"
    expect(doing(text, lambda: [future.wait() for future in waiting])).gives([True, True])


@in_group(2)
def test_executes_while_it_waits(me: WorkerContext) -> None:
    """A worker whose main thread waits for a result executes requests of others."""
    text = "a call whose callee calls back while the caller waits"
    call = sync("worker1", name_through, args=(["worker0"],))
    expect(doing(text, call.run)).gives(["worker1", "worker0"])
    waiting = [rpc.rpc_async("worker1", name_through, args=(["worker0"],)) for _ in range(8)]
    text = "eight such calls at once"
    expect(doing(text, lambda: [f.wait() for f in waiting])).gives([["worker1", "worker0"]] * 8)


# --- errors --------------------------------------------------------------------------------------


class CalculatorError(Exception):
    """An exception class that torch does not know."""


class NeedsTwoError(Exception):
    """An exception that cannot be constructed from its text alone."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


KINDS = {
    "ValueError": ValueError,
    "KeyError": KeyError,
    "StopIteration": StopIteration,
    "AssertionError": AssertionError,
    "CalculatorError": CalculatorError,
}


def fail(kind: str, text: str) -> None:
    raise KINDS[kind](text)


def fail_with_two() -> None:
    raise NeedsTwoError("this one", "that one")


def fail_through(names: list[str]) -> None:
    if names:
        rpc.rpc_sync(names[0], fail_through, args=(names[1:],))
    fail("CalculatorError", "from far away")


def not_to_be_pickled() -> Any:
    return threading.Lock()


def _works(way: Way, to: str = "worker1") -> None:
    expect(way(to, add, args=(3, 4))).gives(7)


@every_way
@in_group(2)
def test_value_error(me: WorkerContext, way: Way) -> None:
    """A ValueError on the callee is raised at the caller with its text, and later calls work.

    Torch sends the exception of a Python function as a result (PYTHON_RET) and raises it at the caller.
    The agent only transports it.
    """
    expect(way("worker1", fail, args=("ValueError", "the cause"))).raises(ValueError, "the cause")
    _works(way)


@every_way
@in_group(2)
def test_exception(me: WorkerContext, way: Way) -> None:
    """An exception of any class comes back with its class name and its text.

    For `rpc_sync` and `rpc_async`, torch raises a RuntimeError with the class name in its text; `to_here`
    raises the class itself.
    """
    for kind in KINDS:
        call = way("worker1", fail, args=(kind, "the cause"))
        error = expect(call).raises(Exception, f"(?s){kind}.*the cause")
        if way is remote:
            name = fact(f"the class of the error of {call.text}", type(error).__name__)
            expect(name).gives(kind)
    _works(way)


@every_way
@in_group(2)
def test_exception_says_where(me: WorkerContext, way: Way) -> None:
    """The text of an exception names the worker that raised it, and has the traceback."""
    got = expect(way("worker1", fail, args=("ValueError", "x"))).raises(ValueError, "worker1")
    expect(fact("the text of an exception", str(got))).satisfies(
        "a traceback with the function's name", lambda text: "Traceback" in text and "fail" in text
    )


@in_group(2)
def test_multi_line_exception(me: WorkerContext) -> None:
    """An exception text of several lines comes back complete."""
    for way in WAYS:
        # ASCII only: torch's own unpacking of a RemoteException garbles other characters.
        text = "first line\nsecond line: 100 %s {0}\n\n  'quoted' \"twice\""
        got = expect(way("worker1", fail, args=("ValueError", text))).raises(ValueError)
        words = [word for word in text.split() if word not in str(got)]
        expect(fact("words of the exception's text that are missing", words)).gives([])


@every_way
@in_group(2)
def test_builtin_error(me: WorkerContext, way: Way) -> None:
    """An error in a builtin is raised as RuntimeError with its text, and later calls work.

    The response is a message of type EXCEPTION; the call's future must get it as its error.
    """
    args = (torch.ones(2), torch.ones(3))
    expect(way("worker1", torch.add, args=args)).raises(RuntimeError, "size of tensor")
    expect(way("worker1", torch.add, args=(torch.ones(2), 1))).gives(torch.full((2,), 2.0))


@in_group(2)
def test_exception_that_cannot_be_made_again(me: WorkerContext) -> None:
    """An exception whose class needs more than a text comes back as an error with its text."""
    for way in WAYS:
        expect(way("worker1", fail_with_two)).raises(Exception, "this one and that one")
        _works(way)


@every_way
@in_group(3)
def test_nested_exception(me: WorkerContext, way: Way) -> None:
    """An exception comes back through nested calls with its class name and its text."""
    call = way("worker1", fail_through, args=(["worker2", "worker0"],))
    expect(call).raises(Exception, "(?s)CalculatorError.*from far away")
    _works(way, "worker2")


@every_way
@in_group(2)
def test_result_that_cannot_be_pickled(me: WorkerContext, way: Way) -> None:
    """A result that cannot be pickled is an error at the caller, and later calls work."""
    expect(way("worker1", not_to_be_pickled)).raises(Exception, "pickle")
    _works(way)


# Not for `remote`: with every backend, torch's `to_here` then waits until its timeout.
@pytest.mark.parametrize("way", [sync, asynchronous], ids=lambda way: way.__name__)
@in_group(2)
def test_function_that_the_callee_lacks(me: WorkerContext, way: Way) -> None:
    """If the callee lacks the function, the error names the function, and later calls work."""
    module = types.ModuleType("only_at_the_caller")
    exec("def found_here_only():\n    return 1\n", vars(module))
    sys.modules[module.__name__] = module
    expect(way("worker1", module.found_here_only)).raises(
        Exception, "only_at_the_caller|found_here_only"
    )
    _works(way)


@every_way
@in_group(2)
def test_unknown_worker(me: WorkerContext, way: Way) -> None:
    """A call to an unknown worker is an error that names the worker, and later calls work."""
    expect(way("nobody", add, args=(1, 2))).raises(Exception, "nobody")
    _works(way)


@in_group(2)
def test_many_errors(me: WorkerContext) -> None:
    """With many calls in flight, each error reaches its own call and no other."""
    waiting = [(n, rpc.rpc_async("worker1", *_good_or_bad(n), timeout=LOST)) for n in range(90)]
    for n, future in waiting:
        call = doing(f"call {n} of 90 in flight, of which every third fails", future.wait)
        if n % 3:
            expect(call).gives(n)
        else:
            expect(call).raises(ValueError, f"number {n}\\b")


def _good_or_bad(n: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (echo, (n,)) if n % 3 else (fail, ("ValueError", f"number {n}"))


# --- callbacks -----------------------------------------------------------------------------------


@in_group(2)
def test_then(me: WorkerContext) -> None:
    """Callbacks chained to a call's future run in order."""
    future = rpc.rpc_async("worker1", add, args=(1, 2))
    chained = future.then(lambda f: f.wait() + 10).then(lambda f: [f.wait()])
    expect(doing("rpc_async(...).then(...).then(...).wait()", chained.wait)).gives([13])
    expect(doing("wait() of the future that the callbacks are chained to", future.wait)).gives(3)


@in_group(2)
def test_done_callback(me: WorkerContext) -> None:
    """Each callback added to a call's future runs once and gets the future.

    The agent must complete the future that `RpcAgent::send` has returned, and not a copy.
    """
    values: list[int] = []
    all_ran = threading.Event()

    def callback(future: torch.futures.Future[int]) -> None:
        values.append(future.value())
        if len(values) == 5:
            all_ran.set()

    future = rpc.rpc_async("worker1", add, args=(1, 2))
    for _ in range(5):
        future.add_done_callback(callback)
    expect(doing("whether 5 added callbacks have run", lambda: all_ran.wait(WAIT))).gives(True)
    expect(doing("wait() of the call", future.wait)).gives(3)
    expect(fact("the values that the callbacks got", values)).gives([3] * 5)


@in_group(2)
def test_callbacks_of_a_done_future(me: WorkerContext) -> None:
    """A callback added to a completed future runs too."""
    future = rpc.rpc_async("worker1", add, args=(1, 2))
    expect(doing("rpc_async(...).wait()", future.wait)).gives(3)
    expect(doing("done()", future.done)).gives(True)
    expect(doing("then(...) of it", lambda: future.then(lambda f: -f.wait()).wait())).gives(-3)
    ran = threading.Event()
    future.add_done_callback(lambda _: ran.set())
    expect(doing("whether an added callback has run", lambda: ran.wait(WAIT))).gives(True)


def _type_of_error(future: torch.futures.Future[Any]) -> str:
    try:
        future.wait()
    except Exception as error:
        return type(error).__name__
    return "no error"


@in_group(2)
def test_callbacks_on_error(me: WorkerContext) -> None:
    """Callbacks of a failed call run and see the error."""
    future = rpc.rpc_async("worker1", fail, args=("ValueError", "gone"))
    seen = future.then(_type_of_error)
    passed_on = future.then(lambda f: f.wait()).then(lambda f: f.wait())
    expect(doing("the error that a callback of then(...) sees", seen.wait)).gives("ValueError")
    expect(doing("wait() of a callback that passes the error on", passed_on.wait)).raises(
        Exception, "gone"
    )
    failed = rpc.rpc_async("worker1", torch.add, args=(torch.ones(2), torch.ones(3)))
    seen = failed.then(_type_of_error)
    expect(doing("the error of a builtin that a callback sees", seen.wait)).gives("RuntimeError")


@in_group(2)
def test_callback_that_calls(me: WorkerContext) -> None:
    """A callback can make calls."""
    first = rpc.rpc_async("worker1", add, args=(1, 2))
    second = first.then(lambda f: rpc.rpc_async("worker1", add, args=(f.wait(), 4)))
    expect(doing("rpc_async in a callback", lambda: second.wait().wait())).gives(7)
    third = first.then(lambda f: rpc.rpc_sync("worker1", add, args=(f.wait(), 5)))
    expect(doing("rpc_sync in a callback", third.wait)).gives(8)


@in_group(2)
def test_many_callbacks(me: WorkerContext) -> None:
    """All callbacks of a thousand calls in flight run, once each."""
    futures = [rpc.rpc_async("worker1", add, args=(n, 0), timeout=LOST) for n in range(1000)]
    chained = [future.then(lambda f: 2 * f.wait()) for future in futures]
    text = "1000 times rpc_async(...).then(...), all in flight"
    collected = doing(text, lambda: torch.futures.wait_all(chained))
    expect(collected).gives([2 * n for n in range(1000)])


# --- async execution -----------------------------------------------------------------------------

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Torch's decorator, which has no types.
executed_async: Callable[[_Function], _Function] = rpc.functions.async_execution

_signal: torch.futures.Future[str] = torch.futures.Future()


@executed_async
def add_async(to: str, left: int, right: int) -> Any:
    """Add on worker ``to``, then add ten here."""
    return rpc.rpc_async(to, add, args=(left, right)).then(lambda f: f.wait() + 10)


@executed_async
def add_async_through(names: list[str], left: int, right: int) -> Any:
    if len(names) == 1:
        return rpc.rpc_async(names[0], add, args=(left, right))
    args = (names[1:], left, right)
    return rpc.rpc_async(names[0], add_async_through, args=args).then(lambda f: f.wait() + 10)


@executed_async
def completed_by_a_thread(value: int) -> Any:
    future: torch.futures.Future[int] = torch.futures.Future()
    threading.Thread(target=future.set_result, args=(value,)).start()
    return future


@executed_async
def done_already(value: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


@executed_async
def fail_at_once() -> Any:
    raise ValueError("before there is a future")


@executed_async
def fail_later(to: str) -> Any:
    return rpc.rpc_async(to, fail, args=("ValueError", "in the future"))


@executed_async
def no_future() -> int:
    return 3


@executed_async
def wait_for_signal() -> Any:
    return _signal


def give_signal(text: str) -> None:
    _signal.set_result(text)


class AsyncCalculator:
    """Has a method of each kind that can be executed asynchronously."""

    @staticmethod
    @executed_async
    def static_add(to: str, left: int, right: int) -> Any:
        return rpc.rpc_async(to, add, args=(left, right))

    @classmethod
    @executed_async
    def class_add(cls, to: str, left: int, right: int) -> Any:
        return rpc.rpc_async(to, add, args=(left, right))


@every_way
@in_group(3)
def test_async_execution(me: WorkerContext, way: Way) -> None:
    """The result of an async execution function is the value of the future that it returns."""
    expect(way("worker1", add_async, args=("worker2", 1, 2))).gives(13)
    expect(way("worker1", add_async, args=("worker1", 1, 2))).gives(13)
    expect(way("worker1", completed_by_a_thread, args=(5,))).gives(5)
    expect(way("worker1", done_already, args=([torch.ones(2), None],))).gives([torch.ones(2), None])


@in_group(3)
def test_async_execution_methods(me: WorkerContext) -> None:
    """Static methods and class methods can be async execution functions."""
    for way in WAYS:
        expect(way("worker1", AsyncCalculator.static_add, args=("worker2", 1, 2))).gives(3)
        expect(way("worker1", AsyncCalculator.class_add, args=("worker2", 1, 2))).gives(3)


@every_way
@in_group(3)
def test_async_execution_chained(me: WorkerContext, way: Way) -> None:
    """Async execution functions can call each other across workers, also back to the caller."""
    path = ["worker2", "worker0", "worker1"]
    expect(way("worker1", add_async_through, args=(path, 1, 2))).gives(23)


@every_way
@in_group(3)
def test_async_execution_error(me: WorkerContext, way: Way) -> None:
    """An error in an async execution function, or in its future, reaches the caller."""
    expect(way("worker1", fail_at_once)).raises(Exception, "before there is a future")
    expect(way("worker1", fail_later, args=("worker2",))).raises(Exception, "in the future")
    _works(way)


@every_way
@in_group(2)
def test_async_execution_without_a_future(me: WorkerContext, way: Way) -> None:
    """If an async execution function returns no future, the call fails and says so."""
    expect(way("worker1", no_future)).raises(Exception, "[Ff]uture")
    _works(way)


@in_group(2)
def test_async_execution_holds_no_thread(me: WorkerContext) -> None:
    """More async execution functions can wait than the worker has threads.

    A function whose future is not complete must not occupy a thread: a callback sends its result.
    """
    waiting = [rpc.rpc_async("worker1", wait_for_signal, timeout=LOST) for _ in range(64)]
    expect(asynchronous("worker1", give_signal, args=("now",), timeout=LOST)).gives(None)
    text = "64 async execution functions that wait for one more call"
    expect(doing(text, lambda: [future.wait() for future in waiting])).gives(["now"] * 64)
