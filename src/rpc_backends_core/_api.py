"""The registry's functions: torch's, under torch's names, and a few that torch lacks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rpc_backends_core import _hooks, _resolve, _starting
from rpc_backends_core._backend_type import BackendType, member_of
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import RpcBackendsError

if TYPE_CHECKING:
    from rpc_backends_core._record import Record


def backend_registered(backend_name: str) -> bool:
    """Return whether ``backend_name`` is available: registered here, installed, or built into torch."""
    return default_registry().knows(backend_name)


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Any,
    init_backend_handler: Any,
) -> BackendType:
    """Register a backend in this process; same signature as torch's function.

    :param backend_name: the name of the new member.
    :param construct_rpc_backend_options_handler: called as ``handler(rpc_timeout, init_method, **kw)``.
    :param init_backend_handler: called as ``handler(store=, name=, rank=, world_size=,
        rpc_backend_options=)``; returns the agent.
    :returns: the backend's member of ``BackendType``.
    :raises RuntimeError: the name is taken.
    """
    owner = sys._getframe(1).f_globals.get("__name__", "__main__")
    handlers = (construct_rpc_backend_options_handler, init_backend_handler)
    return register_for(owner, backend_name, handlers)


def register_for(owner: str, backend_name: str, handlers: tuple[Any, Any]) -> BackendType:
    """Register a backend on behalf of the module ``owner``; see :func:`register_backend`."""
    default_registry().register(
        backend_name,
        handlers,
        owner=owner,
        # Whatever torch's own modules register counts as built in, whenever they are imported.
        torch_own=owner.startswith("torch.distributed."),
        # A package may register during `import torch`, which must not scan the installed packages.
        look=not _torch_is_importing(),
    )
    member: BackendType = member_of(backend_name)
    return member


def unregister_backend(name: str) -> None:
    """Remove a backend that this process registered with :func:`register_backend`.

    :raises UnknownBackendError: nothing of that name was registered here.
    """
    default_registry().unregister(name)


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = _resolve.DEFAULT_TIMEOUT,
    init_method: str = _resolve.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Construct the options of ``backend``, passing through the installed hooks.

    :param backend: a member of ``BackendType``, one of torch's enums, or a name.
    :param rpc_timeout: seconds; 0 means never.
    :param init_method: the URL of the rendezvous.
    :raises TypeError: ``backend`` is none of these.
    """
    try:
        resolved = _resolve.resolve(backend)
        return _resolve.construct_options(resolved, rpc_timeout, init_method, kwargs)
    except Exception as error:
        from rpc_backends_core import _tracebacks

        _tracebacks.shorten(error)
        raise


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the init handler of ``backend``, passing through the installed hooks, and return the agent.

    :param backend: a member of ``BackendType``, one of torch's enums, or a name.
    :raises TypeError: ``backend`` is none of these.
    """
    return _starting.init_backend(_resolve.resolve(backend), args, kwargs)


def records() -> list[Record]:
    """Return the record of every known backend, including those that cannot be used."""
    return default_registry().records()


def record(name: str) -> Record:
    """Return the record of the backend called ``name``, even if the backend is broken.

    :raises UnknownBackendError: there is no such backend.
    """
    try:
        return default_registry().find(name)
    except RpcBackendsError:
        # The backend cannot be used, but the caller still wants its record.
        for known in records():
            if known.name.casefold() == name.casefold():
                return known
        raise


def refresh() -> list[Record]:
    """Scan the installed packages again and return all records."""
    default_registry().refresh()
    _hooks.forget()
    return records()


def _torch_is_importing() -> bool:
    """Return whether ``import torch`` is still running (it runs packages' entry points)."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
