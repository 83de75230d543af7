"""The functions that stand in torch's place. Each keeps torch's name, signature and errors.

They are thin on purpose: this module is imported with torch, and what does the work when it is called.
"""

from __future__ import annotations

from typing import Any


def init_rpc(
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start RPC in this process, as ``torch.distributed.rpc.init_rpc`` does.

    :param name: this worker's name, unique in the group: letters, digits, ``_``, ``:``, ``-``; below 128.
    :param backend: a member of ``BackendType`` or a backend's name. If it is not given, the type of
        ``rpc_backend_options`` decides, then ``RPC_BACKENDS_DEFAULT``, then it is TENSORPIPE.
    :param rank: this worker's rank.
    :param world_size: how many workers there are; None for a group that workers join and leave.
    :param rpc_backend_options: the backend's options; its defaults where they are not given.
    """
    from rpc_backends_core.torch_bridge import start

    start.init_rpc(name, backend, rank, world_size, rpc_backend_options)


def _init_rpc_backend(
    backend: Any = None,
    store: Any = None,
    name: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Start a backend on a store that the caller brings; torch's tests and some programs do."""
    from rpc_backends_core.torch_bridge import start

    start.init_rpc_backend(backend, store, name, rank, world_size, rpc_backend_options)


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """Stop RPC in this process, as ``torch.distributed.rpc.shutdown`` does.

    :param graceful: wait until all workers of a static group have come here and all work is done; in a
        dynamic group, tell the other members.
    :param timeout: seconds to wait for the others; 0 means no limit.
    """
    from rpc_backends_core.torch_bridge import stop

    stop.shutdown(graceful, timeout)


def _set_and_start_rpc_agent(agent: Any) -> None:
    from rpc_backends_core.torch_bridge import start

    start.set_and_start_agent(agent)


def _reset_current_rpc_agent() -> None:
    from rpc_backends_core.torch_bridge import stop

    stop.reset_current_agent()
