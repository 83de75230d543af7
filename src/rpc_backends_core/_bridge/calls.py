"""Calls of a program: their timeouts, and errors that name the worker that was called."""

from __future__ import annotations

import re
from typing import Any

from torch.distributed.rpc import rref_proxy

from rpc_backends_core import _tracebacks
from rpc_backends_core._bridge import results, torch_internals

#: What pybind11 appends to the text of an error: frames of torch's RPC and of the core, and those of
#: the program if the answer was there before the call had returned.
_FRAMES = re.compile(
    r"\n+At:\n  [^\n]+\(\d+\): _handle_exception\n(?:  [^\n]+\(\d+\): [^\n]+\n)*\Z"
)


def limited(timeout: Any) -> Any:
    """Return a timeout of a call that torch can represent, in seconds.

    :param timeout: what the program passes: 0 for no limit, or any positive number.
    :raises ValueError: it is negative, or not a number. -1 is torch's own value for the default timeout.
    """
    if not isinstance(timeout, int | float) or 0 <= timeout <= torch_internals.LONGEST_TIMEOUT:
        return timeout  # torch refuses other types
    if timeout > 0:
        return torch_internals.LONGEST_TIMEOUT
    raise ValueError(
        f"the timeout of the call is {timeout} s; it must be 0 (no limit) or positive. Leave it out to "
        "use rpc_timeout."
    )


def explain(error: Exception, to: Any, function: Any, arguments: Any = ()) -> None:
    """Shorten the traceback of a failed call, and name the worker in its text if the text does not.

    Nothing is imported here: a worker may have no descriptor left.

    :param error: the error of a call.
    :param to: the worker called: its name, its rank, or a ``WorkerInfo``.
    :param function: what was called: a function, or a text.
    :param arguments: the arguments of the function.
    """
    _tracebacks.shorten(error)
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (_FRAMES.sub("", error.args[0]),)
    if not isinstance(error, RuntimeError) or not torch_internals.has_current_agent():
        return
    agent = torch_internals.current_agent()
    callee = _name(agent, to)
    text = str(error)
    if results.UNKNOWN_WORKER in text:
        error.args = (text.replace(results.UNKNOWN_WORKER, repr(callee)),)
        return
    # Engines whose errors do not name workers, such as torch's TensorPipe, have this method.
    explained = getattr(agent, "explained_call_error", None)
    better = explained and explained(callee, _called(function, arguments), text)
    if better:
        error.args = (better,)


def _name(agent: Any, to: Any) -> str:
    if isinstance(to, str):
        return to
    try:
        return str(agent.get_worker_info(getattr(to, "id", to)).name)
    except (RuntimeError, TypeError):
        return str(to)


def _called(function: Any, arguments: Any) -> str:
    """Return what was called, in words; for a method called through an RRef, the name of the method."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", None) or getattr(function, "name", repr(function))
    module = getattr(function, "__module__", None)
    if module == rref_proxy.__name__ and len(arguments) > 1:
        return f"the method {arguments[1]!r} of an RRef"
    if module == "torch" or str(name).startswith("_VariableFunctionsClass."):
        return f"torch.{str(name).rpartition('.')[2]}"
    return f"{module}.{name}" if module else str(name)
