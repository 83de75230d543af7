"""Checks whose errors state the call, the expected and the actual result.

A step of a test describes a call and what it expects::

    expect(sync("worker1", torch.add, args=(torch.ones(2), 1))).gives(torch.full((2,), 2.0))
    expect(sync("worker1", fail)).raises(ValueError, "as asked")
    expect(fact("workers in the group", len(names))).gives(4)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpc_backends_testing.comparison import describe, difference
from rpc_backends_testing.deviations import Deviation, DeviationError, deviate

if TYPE_CHECKING:
    from rpc_backends_processes import WorkerContext

__all__ = [
    "WAYS",
    "Call",
    "Deviation",
    "DeviationError",
    "Expectation",
    "asynchronous",
    "checking",
    "deviate",
    "doing",
    "expect",
    "fact",
    "remote",
    "run_step",
    "sync",
]


@dataclass(frozen=True)
class Call:
    """A call, and its text as a program would write it."""

    text: str
    run: Callable[[], Any]


def sync(to: Any, func: Any, args: Any = (), kwargs: Any = None, **more: Any) -> Call:
    """Describe an ``rpc_sync``; the arguments are torch's."""
    from torch.distributed import rpc

    return Call(
        _text("rpc_sync", to, func, args, kwargs, more),
        lambda: rpc.rpc_sync(to, func, args=args, kwargs=kwargs, **more),
    )


def asynchronous(to: Any, func: Any, args: Any = (), kwargs: Any = None, **more: Any) -> Call:
    """Describe an ``rpc_async`` and the wait for its result."""
    from torch.distributed import rpc

    return Call(
        _text("rpc_async", to, func, args, kwargs, more, ".wait()"),
        lambda: rpc.rpc_async(to, func, args=args, kwargs=kwargs, **more).wait(),
    )


def remote(to: Any, func: Any, args: Any = (), kwargs: Any = None, **more: Any) -> Call:
    """Describe a ``remote`` and the ``to_here`` of its value."""
    from torch.distributed import rpc

    return Call(
        _text("remote", to, func, args, kwargs, more, ".to_here()"),
        lambda: rpc.remote(to, func, args=args, kwargs=kwargs, **more).to_here(),
    )


#: The three ways to call, for tests of all of them.
WAYS: tuple[Callable[..., Call], ...] = (sync, asynchronous, remote)


def doing(text: str, run: Callable[[], Any]) -> Call:
    """Describe any other action, which ``run`` performs."""
    return Call(text, run)


def fact(text: str, value: Any) -> Call:
    """Describe a value that is already known."""
    return Call(text, lambda: value)


class Expectation:
    """The expected result of a call. Each method makes the call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def gives(self, value: Any) -> None:
        """Check that the call returns ``value``, bit by bit.

        :raises DeviationError: it returns anything else, or raises.
        """
        got = self.returns()
        differs = difference(value, got)
        if differs is not None:
            raise deviate(self._call.text, differs.expected, differs.got)

    def returns(self) -> Any:
        """Check that the call returns, and return its result.

        :raises DeviationError: it raises.
        """
        _say(self._call.text)
        try:
            return self._call.run()
        except Exception as error:
            raise deviate(self._call.text, "a result", _error(error)) from error

    def satisfies(self, expected: str, test: Callable[[Any], bool]) -> Any:
        """Check that the call's result passes ``test``, which ``expected`` describes in words."""
        got = self.returns()
        if not test(got):
            raise deviate(self._call.text, expected, describe(got))
        return got

    def raises(self, kind: type[BaseException] = Exception, text: str = "") -> BaseException:
        """Check that the call raises ``kind`` with ``text`` (a regular expression) in its message.

        :returns: the error.
        :raises DeviationError: it returns, or raises anything else.
        """
        expected = kind.__name__ + (f" with {text!r} in its text" if text else "")
        _say(self._call.text)
        try:
            got = self._call.run()
        except kind as error:
            if re.search(text, str(error)):
                return error
            raise deviate(self._call.text, expected, _error(error)) from error
        except Exception as error:
            raise deviate(self._call.text, expected, _error(error)) from error
        raise deviate(self._call.text, expected, f"no error; it returned {describe(got)}")


def expect(call: Call) -> Expectation:
    """Return an expectation of ``call``."""
    return Expectation(call)


_step: list[WorkerContext] = []


def run_step(me: WorkerContext, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a step in a worker; its checks report what they do, in case one hangs."""
    _step[:] = [me]
    try:
        return step(me, *args, **kwargs)
    finally:
        _step.clear()


def checking(step: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function with checks into a step for `Workers.run`; the checks report what they do."""

    def run(me: WorkerContext, *args: Any, **kwargs: Any) -> Any:
        return run_step(me, step, *args, **kwargs)

    # Not functools.wraps: a reference to a step resolves through its `__wrapped__`.
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(run, name, getattr(step, name))
    return run


def _say(text: str) -> None:
    for me in _step:
        me.doing(text)


def _error(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    # An error of another worker has a traceback between its first and its last line.
    text = lines[0] if len(lines) < 2 else f"{lines[0]} ... {lines[-1].strip()}"
    return f"{type(error).__name__}: {text}" if lines else type(error).__name__


def _text(
    way: str,
    to: Any,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    then: str = "",
) -> str:
    name = getattr(func, "__qualname__", None) or getattr(func, "name", None) or repr(func)
    name = name.replace("_VariableFunctionsClass.", "torch.")  # torch's builtins
    parts = [repr(to) if isinstance(to, str) else str(to), str(name)]
    if args:
        shown = ", ".join(describe(arg) for arg in args)
        parts.append(f"args=({shown}{',' if len(args) == 1 else ''})")
    if kwargs:
        shown = ", ".join(f"{key!r}: {describe(value)}" for key, value in kwargs.items())
        parts.append(f"kwargs={{{shown}}}")
    parts += [f"{key}={value!r}" for key, value in more.items()]
    return f"{way}({', '.join(parts)}){then}"
