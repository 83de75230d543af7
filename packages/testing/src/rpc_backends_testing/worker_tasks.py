"""Steps that tests run in workers: start RPC, shut it down, list the members."""

from __future__ import annotations

from typing import Any

from rpc_backends_processes import WorkerContext
from rpc_backends_testing.subject import Subject


def join(
    me: WorkerContext,
    subject: Subject,
    url: str,
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = 0,
    **options: Any,
) -> None:
    """Start RPC, by default in a static group of all workers; ``world_size=None`` makes it dynamic."""
    from torch.distributed import rpc

    name = me.name if name is None else name
    rank = me.index if rank is None else rank
    world_size = me.size if world_size == 0 else world_size
    me.doing(f"init_rpc({name!r}, backend={subject.name!r}, rank={rank}, world_size={world_size})")
    member = rpc.BackendType[subject.name]
    rpc.init_rpc(
        name,
        backend=member,
        rank=rank,
        world_size=world_size,
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            member, init_method=url, **{**subject.options, **options}
        ),
    )


def leave(me: WorkerContext, graceful: bool = True, timeout: float = 0) -> None:
    """Shut RPC down."""
    from torch.distributed import rpc

    me.doing(f"shutdown(graceful={graceful})")
    rpc.shutdown(graceful, timeout)


def members(me: WorkerContext) -> dict[str, int]:
    """Return the ranks of all workers, by name."""
    from torch.distributed import rpc

    infos = rpc.api._get_current_rpc_agent().get_worker_infos()
    return {info.name: info.id for info in infos}
