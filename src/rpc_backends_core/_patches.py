"""Functions that replace torch's, and their installation and removal.

Each keeps torch's name, signature and errors. They are thin because `import torch` imports this
module; the implementation is imported when a function is called.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._registry import Registry


def install() -> None:
    """Install the registry in ``torch.distributed.rpc``.

    Does nothing if the registry is already installed or torch has no RPC. Takes over the backends
    that torch, or a package whose ``torch.backends`` entry point ran earlier, has already registered.
    """
    import torch.distributed

    if (
        STATE.patches
        or not torch.distributed.is_available()
        or not torch.distributed.rpc.is_available()
    ):
        return
    from torch.distributed import rpc

    torchs: Any = rpc.backend_registry.BackendType
    if torchs is not BackendType:
        STATE.prepare_registry(lambda registry: _take_over(registry, torchs))
    for module, name, value in _replacements(rpc):
        STATE.patches.append((module, name, module.__dict__.get(name, _ABSENT)))
        setattr(module, name, value)


def uninstall() -> None:
    """Restore torch's own functions; backends registered in the meantime stay registered."""
    if not STATE.patches:
        return
    rpc = sys.modules["torch.distributed.rpc"]
    while STATE.patches:
        module, name, value = STATE.patches.pop()
        if value is _ABSENT:
            delattr(module, name)
        else:
            setattr(module, name, value)
    from rpc_backends_core._default_registry import default_registry

    for record in default_registry().registered():
        if record.backend and not rpc.backend_registry.backend_registered(record.name):
            rpc.backend_registry.register_backend(record.name, *record.backend.value)
            rpc.__dict__["BackendType"] = rpc.backend_registry.BackendType


def is_installed() -> bool:
    """Return whether the registry is installed in ``torch.distributed.rpc``."""
    return bool(STATE.patches)


# --- replacements ---------------------------------------------------------------------------------


def backend_registered(backend_name: str) -> bool:
    """Return whether ``backend_name`` is available: registered here, installed, or built into torch."""
    from rpc_backends_core import _api

    return _api.backend_registered(backend_name)


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Any,
    init_backend_handler: Any,
) -> Any:
    """Register a backend in this process; see :func:`rpc_backends_core.register_backend`."""
    from rpc_backends_core import _api

    owner = sys._getframe(1).f_globals.get("__name__", "__main__")
    handlers = (construct_rpc_backend_options_handler, init_backend_handler)
    return _api.register_for(owner, backend_name, handlers)


def construct_rpc_backend_options(
    backend: Any, rpc_timeout: float = 60.0, init_method: str = "env://", **kwargs: Any
) -> Any:
    """Construct the options of ``backend``; ``rpc_timeout`` in seconds, 0 for no limit."""
    from rpc_backends_core import _api

    return _api.construct_rpc_backend_options(backend, rpc_timeout, init_method, **kwargs)


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the init handler of ``backend`` and return the agent."""
    from rpc_backends_core import _api

    return _api.init_backend(backend, *args, **kwargs)


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start RPC in this process, as ``torch.distributed.rpc.init_rpc`` does.

    :param name: this worker's name, unique in the group: fewer than 128 letters, digits, ``_``,
        ``:``, ``-``.
    :param backend: a member of ``BackendType`` or a backend's name. By default, the type of
        ``rpc_backend_options`` selects the backend, then ``RPC_BACKENDS_DEFAULT``, then TENSORPIPE.
        ``RPC_BACKENDS_OVERRIDE`` overrides all of these.
    :param rank: this worker's rank.
    :param world_size: the number of workers; None for a dynamic group, which workers join and leave.
    :param rpc_backend_options: the backend's options; by default, its default options.
    """
    from rpc_backends_core._bridge import start

    start.init_rpc(name, backend, rank, world_size, rpc_backend_options)


def _init_rpc_backend(
    backend: Any = None,
    store: Any = None,
    name: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start a backend on the caller's store; used by torch's tests and some programs."""
    from rpc_backends_core._bridge import start

    start.init_rpc_backend(backend, store, name, rank, world_size, rpc_backend_options)


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """Stop RPC in this process, as ``torch.distributed.rpc.shutdown`` does.

    :param graceful: in a static group, wait until all workers have called this and all work is done;
        in a dynamic group, tell the other members.
    :param timeout: seconds to wait for the other workers; 0 for no limit.
    """
    from rpc_backends_core._bridge import stop

    stop.shutdown(graceful, timeout)


def _wait_all_workers(timeout: float = 0) -> None:
    from rpc_backends_core._bridge import stop

    stop.wait_all_workers(timeout)


def _set_rpc_timeout(seconds: float) -> None:
    from rpc_backends_core._bridge import torch_internals

    torch_internals.set_rpc_timeout(seconds)


def _set_and_start_rpc_agent(agent: Any) -> None:
    from rpc_backends_core._bridge import install_agent

    install_agent.set_and_start_agent(agent)


def _reset_current_rpc_agent() -> None:
    from rpc_backends_core._bridge import stop

    stop.reset_current_agent()


def _destroy_rref_context(*ignores_leaks: bool) -> None:
    from rpc_backends_core._bridge import stop

    stop.destroy_rref_context(*ignores_leaks)


def _delete_all_user_and_unforked_owner_rrefs(*timeout: Any) -> None:
    from rpc_backends_core._bridge import stop

    stop.delete_rrefs(*timeout)


def _handling_exceptions(internal: Any) -> Callable[[Any], None]:
    """Return what replaces torch's ``_handle_exception``, which torch calls with each result.

    It takes the place of a function of torch's: a message passes no more Python code than before.
    """
    errors = (internal.RemoteException, AttributeError)
    torchs = internal._handle_exception

    def _handle_exception(result: Any) -> None:
        if isinstance(result, errors):
            from rpc_backends_core._bridge import results

            torchs(results.checked(result))

    return _handle_exception


def _pickling(internal: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what replaces torch's ``serialize``, which pickles results, and ``deserialize``.

    They take the place of functions of torch's: a message passes no more Python code than before.
    """
    pickler = internal._internal_rpc_pickler

    def serialize(obj: Any) -> Any:
        try:
            return pickler.serialize(obj)
        except Exception as error:
            from rpc_backends_core._bridge import results, torch_internals

            if not torch_internals.has_current_agent():  # torch's tests pickle without one
                raise

            return pickler.serialize(results.not_pickled(obj, error))

    def deserialize(binary_data: bytes, tensor_table: Any) -> Any:
        try:
            result = pickler.deserialize(binary_data, tensor_table)
        except Exception as error:
            from rpc_backends_core._bridge import results

            return results.not_unpickled(binary_data, error)
        if isinstance(result, AttributeError):
            from rpc_backends_core._bridge import results

            return results.with_exception(binary_data, result)
        return result

    return serialize, deserialize


def _pickled_types(internal: Any) -> dict[type, Any]:
    """Return what replaces torch's table of how types are pickled: some tensors are refused.

    Torch's TensorPipe agent ends the process on them, in a call and in a result.
    """
    pickler, check = internal._internal_rpc_pickler, _checking_layouts(internal.torch)
    reduce = pickler._tensor_reducer

    def reduce_tensor(tensor: Any) -> Any:
        check((tensor,))
        return reduce(tensor)

    return {**pickler._dispatch_table, internal.torch.Tensor: reduce_tensor}


def _checking_layouts(torch: Any) -> Callable[[Iterable[Any]], None]:
    """Return a function that refuses MKL-DNN tensors and nested ones."""
    tensor, mkldnn = torch.Tensor, torch._mkldnn

    def check(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, tensor):
                if value.layout is mkldnn:
                    raise ValueError(
                        "a tensor of the message cannot be sent: its layout is Mkldnn; call .to_dense() "
                        "before you send it"
                    )
                # A subclass, such as a jagged one, is pickled in its own way.
                if type(value) is tensor and value.is_nested:
                    raise ValueError(
                        "a tensor of the message cannot be sent: it is a nested tensor; send the list "
                        "from .unbind()"
                    )
            elif isinstance(value, list | tuple):
                check(value)
            elif isinstance(value, dict):
                check(value.values())

    return check


def _sending_tensors(api: Any, name: str) -> Callable[..., Any]:
    """Return what replaces a function of torch's that sends a call without pickling its arguments."""
    torchs, check = getattr(api, name), _checking_layouts(api.torch)

    @functools.wraps(torchs)
    def send(*args: Any, **kwargs: Any) -> Any:
        check(args)
        check(kwargs.values())
        return torchs(*args, **kwargs)

    return send


def _calling(api: Any, name: str) -> Callable[..., Any]:
    """Return what replaces torch's ``rpc_sync``, ``rpc_async`` or ``remote``.

    It takes the place of a wrapper of torch's, which checks that RPC is initialised: a call passes no
    more Python code than before.
    """
    torchs = getattr(api, name)
    unchecked, unset = torchs.__wrapped__, api.UNSET_RPC_TIMEOUT

    @functools.wraps(unchecked)
    def call(to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: Any = unset) -> Any:
        if not api._is_current_rpc_agent_set():
            return torchs(to, func, args, kwargs, timeout)  # raises
        if timeout != unset:
            timeout = _calls().limited(timeout)
        try:
            return unchecked(to, func, args, kwargs, timeout)
        except Exception as error:
            _calls().explain(error, to, func, args or ())
            _shorten(error)
            raise

    return call


def _asking_owner(torchs: Any, unset: float) -> Callable[..., Any]:
    """Return what replaces a method of torch's RRefs that asks the RRef's owner."""

    @functools.wraps(torchs)
    def ask(self: Any, timeout: Any = unset, *args: Any, **kwargs: Any) -> Any:
        if timeout != unset:
            timeout = _calls().limited(timeout)
        try:
            return torchs(self, timeout, *args, **kwargs)
        except Exception as error:
            _calls().explain(error, self.owner(), f"RRef.{torchs.__name__}")
            _shorten(error)
            raise

    return ask


def _shorten(error: Exception) -> None:
    from rpc_backends_core import _tracebacks

    _tracebacks.shorten(error)


def _calls() -> Any:
    from rpc_backends_core._bridge import calls

    return calls


#: Arguments of torch's ``TensorPipeRpcBackendOptions`` that torch keeps in C++ and cannot be read
#: back.
_KEPT = ("_transports", "_channels")


def keeping_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap the ``__init__`` of torch's options to keep unreadable arguments as attributes.

    Only `_carried_options` uses them, to learn whether a program has chosen transports.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            init(self, *args, **kwargs)
        except (TypeError, RuntimeError) as error:
            from rpc_backends_core import _handlers

            _handlers.check_option_names("TENSORPIPE", init, kwargs)
            problem = _handlers.problem_of("TENSORPIPE", kwargs)
            if problem:
                # programs may look for torch's words, but not for its list of all arguments
                torchs = str(error).partition(". The following argument types")[0]
                raise type(error)(f"{problem} torch: {torchs}") from None
            raise
        for name in _KEPT:
            if kwargs.get(name) is not None:
                setattr(self, name, kwargs[name])

    return __init__


# --- installation -----------------------------------------------------------------------------


_ABSENT: Any = object()
#: Functions of torch's that send a call of an operator or of TorchScript.
_UNPICKLED = (
    "_invoke_rpc_builtin",
    "_invoke_rpc_torchscript",
    "_invoke_remote_builtin",
    "_invoke_remote_torchscript",
)
_DELETE_RREFS = "_delete_all_user_and_unforked_owner_rrefs"


def _replacements(rpc: Any) -> list[tuple[Any, str, Any]]:
    registry_module, api = rpc.backend_registry, rpc.api
    shared = {
        "BackendType": BackendType,
        "backend_registered": backend_registered,
        "register_backend": register_backend,
        "construct_rpc_backend_options": construct_rpc_backend_options,
        "init_backend": init_backend,
    }
    calls = {name: _calling(api, name) for name in ("rpc_sync", "rpc_async", "remote")}
    serialize, deserialize = _pickling(rpc.internal)
    return [
        *((registry_module, name, value) for name, value in shared.items()),
        *((rpc, name, value) for name, value in shared.items()),
        *((module, name, value) for module in (rpc, api) for name, value in calls.items()),
        *((api, name, _sending_tensors(api, name)) for name in _UNPICKLED),
        *(
            (rpc.PyRRef, name, _asking_owner(getattr(rpc.PyRRef, name), api.UNSET_RPC_TIMEOUT))
            for name in ("to_here", "_get_type")
        ),
        (rpc, "BackendValue", registry_module.BackendValue),
        (rpc, "init_rpc", init_rpc),
        (rpc, "_init_rpc_backend", _init_rpc_backend),
        (rpc, "shutdown", shutdown),
        (rpc, "_set_rpc_timeout", _set_rpc_timeout),
        (api, "shutdown", shutdown),
        (api, "_wait_all_workers", _wait_all_workers),
        (api, "_set_and_start_rpc_agent", _set_and_start_rpc_agent),
        (api, "_reset_current_rpc_agent", _reset_current_rpc_agent),
        (api, "_destroy_rref_context", _destroy_rref_context),
        (api, _DELETE_RREFS, _delete_all_user_and_unforked_owner_rrefs),
        (rpc.internal._internal_rpc_pickler, "_dispatch_table", _pickled_types(rpc.internal)),
        (rpc.internal, "serialize", serialize),
        (rpc.internal, "deserialize", deserialize),
        (rpc.internal, "_handle_exception", _handling_exceptions(rpc.internal)),
        *_options_class(rpc),
    ]


def _options_class(rpc: Any) -> list[tuple[Any, str, Any]]:
    """Return what replaces torch's ``TensorPipeRpcBackendOptions``, or its constructor."""
    name = "TensorPipeRpcBackendOptions"
    options: Any = getattr(rpc, name, None)
    if options is None:
        return []
    replaced: list[tuple[Any, str, Any]] = []
    if not hasattr(rpc, "TensorPipeAgent"):
        # Torch was built without TensorPipe, and leaves a class that cannot be constructed.
        from rpc_backends_core import _tensorpipe_options

        options = _tensorpipe_options.TensorPipeRpcBackendOptions
        replaced = [(module, name, options) for module in (rpc, rpc.options)]
    return [*replaced, (options, "__init__", keeping_arguments(options.__init__))]


def _take_over(registry: Registry, torchs: Any) -> None:
    """Register the members of an enum that torch made."""
    from rpc_backends_core._builtin_backends import options_type_of

    for member in reversed(torchs):  # torch puts the newest first
        if registry.is_registered(member.name):
            continue
        own = _is_torchs(member.value)
        registry.register(
            member.name,
            tuple(member.value),
            owner=_home(member.value),
            torch_own=own,
            options_type=options_type_of(member.name) if own else None,
            look=False,
        )


def _is_torchs(value: Any) -> bool:
    return _home(value).startswith("torch.distributed.")


def _home(value: Any) -> str:
    return str(getattr(value[1], "__module__", None) or "__main__")
