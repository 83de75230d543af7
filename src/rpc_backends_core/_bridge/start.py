"""Starting RPC: what ``init_rpc`` does, from the program's arguments to a running agent."""

from __future__ import annotations

import encodings.unicode_escape
import logging
import numbers
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.rpc import rref_proxy

from rpc_backends_core import _resolve
from rpc_backends_core._bridge import calls, results, stop, torch_internals
from rpc_backends_core._bridge.running import log_start
from rpc_backends_core._bridge.session import start_session
from rpc_backends_core._record import ResolvedBackend
from rpc_backends_core._settings import Settings

logger = logging.getLogger("rpc_backends")

#: What torch imports with the first call and the first error of a call, and what shutdown() needs. It is
#: imported now, because nothing can be imported when the process has no descriptors left.
NEEDED_LATER = (rref_proxy, encodings.unicode_escape, calls, results, stop)
#: Worker ids are 16 bits, signed, in torch.
_MAX_RANK = 32767


def init_rpc(
    name: str, backend: Any, rank: int, world_size: int | None, rpc_backend_options: Any
) -> None:
    """Start RPC; see :func:`~rpc_backends_core._patches.init_rpc`. A failed start is undone."""
    torch_internals.log_api_usage()
    if rpc_backend_options is not None and not isinstance(
        rpc_backend_options, rpc.RpcBackendOptions
    ):
        if backend is not None:
            _resolve.name_of(backend)  # if both are wrong, torch's error names this one
        raise TypeError(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions; got "
            f"{type(rpc_backend_options).__name__}."
        )
    _refuse_second_start()
    _start(backend, rpc_backend_options, name, rank, world_size)


def init_rpc_backend(
    backend: Any,
    store: Any,
    name: Any,
    rank: int,
    world_size: int | None,
    rpc_backend_options: Any,
) -> None:
    """Start a backend on the caller's store; replaces torch's function of this name."""
    if not isinstance(store, dist.Store):
        # torch raises RuntimeError here and below; programs may catch it
        raise RuntimeError(  # noqa: TRY004
            f"Argument {store} must be of type {dist.Store} but got {type(store)}"
        )
    _check_options(rpc_backend_options)
    _refuse_second_start()
    _start(backend, rpc_backend_options, name, rank, world_size, store)


def _start(
    backend: Any, options: Any, name: Any, rank: Any, world_size: Any, store: Any = None
) -> None:
    try:
        _start_resolved(backend, options, name, rank, world_size, store)
    except Exception as error:
        from rpc_backends_core import _tracebacks

        logger.debug("RPC could not be started", exc_info=True)
        _tracebacks.shorten(error)
        raise


def _start_resolved(
    backend: Any, options: Any, name: Any, rank: Any, world_size: Any, store: Any
) -> None:
    settings = Settings.from_environment()
    resolved = _resolve.resolve_start(backend, options, settings, is_dynamic=not world_size)
    _check_arguments(resolved, name, rank, world_size)
    if settings.require_authentication:
        _resolve.check_authentication(resolved)
    resolved.hooks.rpc_backends_start(
        backend=resolved.name,
        resolved=resolved,
        name=name,
        rank=rank,
        world_size=world_size,
        proceed=lambda: start_session(
            resolved, name, rank, world_size, settings.join_timeout, store
        ),
    )
    log_start()


def _refuse_second_start() -> None:
    if torch_internals.has_current_agent():
        raise RuntimeError("RPC is already initialized")


def _check_options(options: Any) -> None:
    _check_type(options, rpc.RpcBackendOptions)


def _check_type(argument: Any, wanted: Any, name: str = "") -> None:
    """Reject an argument of a wrong type, with torch's message."""
    if not isinstance(argument, wanted):
        of = f" (the argument {name} of init_rpc)" if name else ""
        raise RuntimeError(  # noqa: TRY004
            f"Argument {argument!r}{of} must be of type {wanted} but got type {type(argument)}"
        )


def _check_arguments(resolved: ResolvedBackend, name: Any, rank: Any, world_size: Any) -> None:
    _check_type(name, str, "name")
    _check_type(rank, numbers.Integral, "rank")
    _check_type(world_size, (numbers.Integral, type(None)), "world_size")
    _check_options(resolved.options)
    if rank > _MAX_RANK:
        raise ValueError(f"rank is {rank}; torch supports ranks up to {_MAX_RANK}.")
    if rank < -1 or 0 < (world_size or 0) <= rank:
        most = f"{world_size - 1}, as world_size is {world_size}" if world_size else f"{_MAX_RANK}"
        raise ValueError(f"rank is {rank} for RPC worker {name!r}; it must be from 0 to {most}.")
    try:
        rpc.WorkerInfo(name, max(rank, 0))  # raises if torch cannot represent the name
    except RuntimeError as error:
        raise RuntimeError(f"name is {name!r}. {str(error).partition(', but got')[0]}.") from None
    if not resolved.options.rpc_timeout >= 0:  # also if it is not a number
        raise ValueError(
            f"rpc_timeout is {resolved.options.rpc_timeout} s for {resolved.name}; it must be 0 (never) "
            "or positive."
        )
    resolved.options.rpc_timeout = min(
        resolved.options.rpc_timeout, torch_internals.LONGEST_TIMEOUT
    )
