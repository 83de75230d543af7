"""The registry's functions: torch's, under torch's names, and those torch does not have."""

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
    """Return whether ``backend_name`` can be used: registered here, installed, or torch's own."""
    return default_registry().knows(backend_name)


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Any,
    init_backend_handler: Any,
) -> BackendType:
    """Register a backend in this process, as torch's function of this name does.

    :param backend_name: the name of the new member.
    :param construct_rpc_backend_options_handler: called as ``handler(rpc_timeout, init_method, **kw)``.
    :param init_backend_handler: called as ``handler(store=, name=, rank=, world_size=,
        rpc_backend_options=)``; returns the agent.
    :returns: the member, in the one enum that all others are in.
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
        # What torch's own modules register, whenever they are imported, is torch's own.
        torch_own=owner.startswith("torch.distributed."),
        # A package may register while torch is being imported, and a scan has no place there.
        look=not _torch_is_importing(),
    )
    member: BackendType = member_of(backend_name)
    return member


def unregister_backend(name: str) -> None:
    """Undo a :func:`register_backend` of this process.

    :raises UnknownBackendError: nothing of that name was registered here.
    """
    default_registry().unregister(name)


def construct_rpc_backend_options(
    backend: Any,
    rpc_timeout: float = _resolve.DEFAULT_TIMEOUT,
    init_method: str = _resolve.DEFAULT_INIT_METHOD,
    **kwargs: Any,
) -> Any:
    """Construct the options of ``backend``, through the hooks of installed packages.

    :param backend: a member of ``BackendType``, one of torch's enums, or a name.
    :param rpc_timeout: seconds; 0 means never.
    :param init_method: the URL of the rendezvous.
    :raises TypeError: ``backend`` is none of these.
    """
    resolved = _resolve.resolve(backend)
    return _resolve.construct_options(resolved, rpc_timeout, init_method, kwargs)


def init_backend(backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the init handler of ``backend``, through the hooks, and return the agent.

    :param backend: a member of ``BackendType``, one of torch's enums, or a name.
    :raises TypeError: ``backend`` is none of these.
    """
    return _starting.init_backend(_resolve.resolve(backend), args, kwargs)


def records() -> list[Record]:
    """Return what is known of every backend, also of those that cannot be used."""
    return default_registry().records()


def record(name: str) -> Record:
    """Return what is known of the backend that ``name`` finds, also if it is broken.

    :raises UnknownBackendError: there is none.
    """
    try:
        return default_registry().find(name)
    except RpcBackendsError:
        # It cannot be used; what is known of it is asked for all the same.
        for known in records():
            if known.name.casefold() == name.casefold():
                return known
        raise


def refresh() -> list[Record]:
    """Look at the installed packages again and return all records."""
    default_registry().refresh()
    _hooks.forget()
    return records()


def _torch_is_importing() -> bool:
    """Return whether ``import torch`` is still under way; entry points of packages run in it."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
