"""Errors about a backend's two handlers, which name the backend, its package and the handler.

An exception that a handler raises keeps its type and message, and gets a note, unless its message is
complete: it is an error of this project, or says what is wrong with an argument of this backend.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rpc_backends_core._errors import BackendContractError, HookError, RpcBackendsError
from rpc_backends_core._settings import nearest

if TYPE_CHECKING:
    from rpc_backends_core._record import Record, ResolvedBackend

CONSTRUCT = "construct_rpc_backend_options_handler"
INIT = "init_backend_handler"

_HOOKS = {CONSTRUCT: "rpc_backends_construct_options", INIT: "rpc_backends_init_backend"}
_LONGEST_REPR = 80
#: Options that torch's own backends have, their types, and these in words.
_COMMON_OPTIONS: tuple[tuple[str, type, str], ...] = (
    ("rpc_timeout", numbers.Real, "a number of seconds"),
    ("init_method", str, "a str: the URL of the rendezvous"),
    ("num_worker_threads", numbers.Integral, "an int"),
)


def noted(resolved: ResolvedBackend, which: str) -> Callable[..., Any]:
    """Return a handler that refuses unknown options, and whose exceptions have a note that names it."""
    handler = getattr(resolved.backend, which)

    def call(*args: Any, **kwargs: Any) -> Any:
        if which == CONSTRUCT:
            check_option_names(resolved.name, handler, kwargs)
        try:
            return handler(*args, **kwargs)
        except Exception as error:
            if not _is_complete(error, resolved.name):  # else its message stays the last line
                error.add_note(f"Raised by {_description(resolved, which)}.")
            raise

    return call


def _is_complete(error: Exception, backend: str) -> bool:
    """Return whether the message of an error says what to do without the name of the handler."""
    if isinstance(error, RpcBackendsError):
        return True
    if not isinstance(error, ValueError | TypeError | RuntimeError):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    raiser = traceback.tb_frame.f_globals.get("__name__", "") if traceback else ""
    return backend in str(error) or raiser.startswith("rpc_backends_core.")


def check_option_names(backend: str, function: Callable[..., Any], given: Iterable[str]) -> None:
    """Check the names of options that are passed to a function or class as keywords.

    :param function: takes each option as a parameter. If it takes any keyword (``**options``), or has no
        signature, nothing is checked.
    :raises TypeError: a name is unknown; the message has the known ones, and suggests the nearest.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name != "self"
    ]
    unknown = sorted(set(given) - set(known))
    if unknown:
        close = nearest(unknown[0], known)
        hint = f" Did you mean {close!r}?" if close else ""
        raise TypeError(
            f"{backend} has no option {', '.join(map(repr, unknown))}.{hint} Its options: "
            f"{', '.join(known)}."
        )


def problem_of(backend: str, given: Mapping[str, Any]) -> str:
    """Return what is wrong with the options that every backend has; empty if nothing is."""
    for option, wanted, words in _COMMON_OPTIONS:
        value = given.get(option)
        if option in given and not isinstance(value, wanted):
            return f"{option}={value!r} is of type {type(value).__name__}; {backend} needs {words}."
    if not given.get("rpc_timeout", 0) >= 0:  # also if it is not a number
        return f"rpc_timeout={given['rpc_timeout']!r} is out of range; {backend} needs 0 or more seconds."
    return ""


def have_right_types(given: Mapping[str, Any]) -> bool:
    """Return whether the options that every backend has are of the right types."""
    return all(isinstance(given.get(name), wanted) for name, wanted, _ in _COMMON_OPTIONS)


def check_options(resolved: ResolvedBackend, options: Any) -> None:
    """Check options that the backend or a hook has constructed.

    :raises BackendContractError: they are not options, or not of the type that the backend declares.
    :raises HookError: the same, and a hook package may have made them.
    """
    from torch.distributed.rpc import RpcBackendOptions

    wanted = resolved.backend.options_type
    if not isinstance(options, wanted or RpcBackendOptions):
        must = "it must return an instance of torch.distributed.rpc.RpcBackendOptions"
        if wanted is not None:
            must = f"it must return an instance of the declared options_type, {_path(wanted)}"
        raise _wrong_result(resolved, CONSTRUCT, options, must)


@contextmanager
def reporting_wrong_agent(resolved: ResolvedBackend, agent: Any) -> Iterator[None]:
    """Report an error of the block as an error about ``agent``, if ``agent`` is not an agent.

    The agent is not checked before, because programs may test their backend with a mock.

    :raises BackendContractError: the block has failed, and ``agent`` is not an agent.
    :raises HookError: the same, and a hook package may have made it.
    """
    from torch.distributed.rpc import RpcAgent

    try:
        yield
    except Exception as error:
        if isinstance(agent, RpcAgent):
            raise
        raise wrong_agent(resolved, agent) from error


def wrong_agent(resolved: ResolvedBackend, result: Any) -> BackendContractError | HookError:
    """Return the error for something that a backend or a hook returned instead of an agent."""
    must = "it must return the agent that it has started, a torch.distributed.rpc.RpcAgent"
    return _wrong_result(resolved, INIT, result, must)


def hook_packages(hooks: Any, name: str) -> list[str]:
    """Return the packages that implement the hook ``name``, as error messages name them."""
    implementations = getattr(hooks, name).get_hookimpls()
    return [
        implementation.plugin_name
        for implementation in implementations
        if implementation.plugin_name != "defaults"
    ]


def shown(value: Any) -> str:
    """Return a value as text with its type, for error messages that reject the value."""
    text = repr(value)
    if value is None:
        return text
    if len(text) > _LONGEST_REPR:
        text = f"{text[: _LONGEST_REPR - 3]}..."
    return f"{text} of type {type(value).__name__}"


def _wrong_result(
    resolved: ResolvedBackend, which: str, result: Any, must: str
) -> BackendContractError | HookError:
    error = (
        f"the {_description(resolved, which)} returned {shown(result)}; {must}. "
        f"{_remedy(resolved.record)}"
    )
    packages = hook_packages(resolved.hooks, _HOOKS[which])
    if packages:
        return HookError(
            f"{error} If a hook {_HOOKS[which]} replaced the result of the handler, fix or uninstall "
            f"its package: {' or '.join(packages)}."
        )
    return BackendContractError(error)


def _description(resolved: ResolvedBackend, which: str) -> str:
    handler = _path(getattr(resolved.backend, which))
    return f"{which} ({handler}) of RPC backend {resolved.name!r} ({resolved.record.origin})"


def _remedy(record: Record) -> str:
    if record.source != "plugin" or record.distribution is None:
        return "Fix the handler, or use another backend."
    return (
        f"Fix or upgrade the package (pip install --upgrade {record.distribution}), or uninstall it: "
        f"pip uninstall {record.distribution}."
    )


def _path(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    return repr(obj) if name is None else f"{obj.__module__}.{name}"
