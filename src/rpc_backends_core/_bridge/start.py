"""Starting RPC: what ``init_rpc`` does, from the program's arguments to a running agent."""

from __future__ import annotations

import numbers
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc

from rpc_backends_core import _hooks as hooks
from rpc_backends_core._api import as_member, construct_rpc_backend_options, init_backend
from rpc_backends_core._bridge import original, override
from rpc_backends_core._bridge.resolve import choose
from rpc_backends_core._bridge.session import Session, begin, current

#: Worker ids are 16 bits, signed, in torch.
_MAX_RANK = 32767


def init_rpc(
    name: str, backend: Any, rank: int, world_size: int | None, rpc_backend_options: Any
) -> None:
    """Start RPC; see :func:`~.patches.init_rpc`. If it fails, nothing of it is left."""
    torch._C._log_api_usage_once("torch.distributed.init_rpc")
    if rpc_backend_options is not None and not isinstance(
        rpc_backend_options, rpc.RpcBackendOptions
    ):
        if backend is not None:
            as_member(backend)  # the first of two wrong arguments is named, as torch does
        raise TypeError(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions; got "
            f"{type(rpc_backend_options).__name__}."
        )
    overriding = override.backend_for(backend, rpc_backend_options)
    member = overriding or choose(backend, rpc_backend_options)
    by_options = overriding is None and backend is None and rpc_backend_options is not None
    if by_options and member.name != "TENSORPIPE":
        rpc.logger.warning(
            "init_rpc was given options of %(member)s and no backend, so %(member)s is used rather than "
            "TENSORPIPE. Pass backend=%(member)r to say so yourself.",
            {"member": member},
        )
    if rpc.api._is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    if rpc_backend_options is None:
        rpc_backend_options = construct_rpc_backend_options(member)
    elif overriding is not None:
        rpc_backend_options = override.options_for(overriding, rpc_backend_options)
    _check_arguments(member, name, rank, world_size, rpc_backend_options)

    session = Session(member.name, name, rank, world_size, rpc_backend_options)
    try:
        with begin(session):
            store = session.open()
            rpc._set_profiler_node_id(session.rank)
            _start_agent(member, store, name, session.rank, world_size, rpc_backend_options)
    except BaseException as error:
        abandon(session, error)
        raise


def init_rpc_backend(
    backend: Any,
    store: Any,
    name: Any,
    rank: int,
    world_size: int | None,
    rpc_backend_options: Any,
) -> None:
    """Start a backend on the caller's store; torch's function of this name."""
    overriding = override.backend_for(backend, rpc_backend_options)
    member = overriding or choose(backend, None)
    if not isinstance(store, dist.Store):
        # torch raises RuntimeError here and below; programs may look for it
        raise RuntimeError(  # noqa: TRY004
            f"Argument {store} must be of type {dist.Store} but got {type(store)}"
        )
    _check_arguments(member, name, rank, world_size, rpc_backend_options)
    if rpc.api._is_current_rpc_agent_set():
        raise RuntimeError("RPC is already initialized")
    if overriding is not None:
        rpc_backend_options = override.options_for(overriding, rpc_backend_options)
    session = Session(member.name, name, rank, world_size, rpc_backend_options, store=store)
    try:
        with begin(session):
            _start_agent(member, store, name, rank, world_size, rpc_backend_options)
    except BaseException as error:
        abandon(session, error)
        raise


def set_and_start_agent(agent: Any) -> None:
    """Install an agent, after the hooks have seen it; every backend's agent passes here."""
    chosen = hooks.agent_to_install(agent)
    session = current()
    if session is not None:
        # C++ keeps the agents alive but not their Python side, and so not their Python methods.
        session.agents.extend([agent, chosen])
    original("torch.distributed.rpc.api", "_set_and_start_rpc_agent")(chosen)


def _start_agent(
    member: Any, store: Any, name: str, rank: int, world_size: int | None, options: Any
) -> None:
    agent = init_backend(
        member,
        store=store,
        name=name,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=options,
    )
    rpc.api._init_rpc_states(agent)


def abandon(session: Session, error: BaseException) -> None:
    """Undo a start that failed: stop the agent, close the store, tell those who wait for us."""
    if rpc.api._is_current_rpc_agent_set():
        # Not torch's shutdown: it would make RRefContext, which keeps the agent that it first sees,
        # and RRefs would not work in any later group of this process.
        rpc.api._get_current_rpc_agent().shutdown()
        rpc.api._cleanup_python_rpc_handler()
        original("torch.distributed.rpc.api", "_reset_current_rpc_agent")()
    session.abandon(error)
    # Frames of the traceback would keep stores and agents, and so sockets and threads, alive for as
    # long as the program keeps the exception.
    traceback.clear_frames(error.__traceback__)


def _check_arguments(member: Any, name: Any, rank: Any, world_size: Any, options: Any) -> None:
    """Refuse arguments of a wrong type, with torch's text."""
    types: list[tuple[Any, Any]] = [
        (name, str),
        (rank, numbers.Integral),
        (world_size, (numbers.Integral, type(None))),
        (options, rpc.RpcBackendOptions),
    ]
    for argument, wanted in types:
        if not isinstance(argument, wanted):
            raise RuntimeError(  # noqa: TRY004
                f"Argument {argument} must be of type {wanted} but got type {type(argument)}"
            )
    if rank > _MAX_RANK:
        raise ValueError(f"rank is {rank}; torch carries ranks up to {_MAX_RANK}.")
    rpc.WorkerInfo(name, max(rank, 0))  # refuses a name that torch cannot carry
    if options.rpc_timeout < 0:
        raise ValueError(
            f"rpc_timeout is {options.rpc_timeout} s for {member!r}; it must be 0 (never) or positive."
        )
