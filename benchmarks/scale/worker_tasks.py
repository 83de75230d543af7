"""Tasks that run in the workers of a counted group."""

from __future__ import annotations

import collections
import functools
import os
from datetime import timedelta
from typing import Any

from torch.distributed import rpc

from rpc_backends_processes import WorkerContext, launcher_environ

#: How long a wait in the store may last, in seconds: for ever.
_NEVER = timedelta(seconds=10_000)
#: The functions of `torch.distributed.rpc.api` that send a call.
_SENDING = ("_invoke_rpc_builtin", "_invoke_rpc_python_udf", "_invoke_rpc_torchscript")


def prepare(me: WorkerContext) -> None:
    """Start counting this worker's calls, and make each wait in the store a single request.

    A worker that waits checks the store again and again, so the number of its requests would depend on
    how long workers wait for each other.
    """
    from rpc_backends_core._group import waiting

    def wait(store: Any, key: str, *_: float) -> bool:
        store.wait([key], _NEVER)
        return True

    waiting._poll = wait
    waiting._SLICE = _NEVER.total_seconds()
    counts = me.memory["calls"] = collections.Counter[str]()
    for name in _SENDING:
        setattr(rpc.api, name, _counting(getattr(rpc.api, name), counts))


def _counting(send: Any, counts: collections.Counter[str]) -> Any:
    @functools.wraps(send)
    def sending(to: Any, what: Any, *arguments: Any) -> Any:
        counts["calls"] += 1
        counts["bytes"] += len(what) if isinstance(what, bytes) else 0
        return send(to, what, *arguments)

    return sending


def join(
    me: WorkerContext,
    urls: list[str],
    backend: str,
    options: dict[str, Any],
    world_size: int | None,
) -> None:
    """Join the group through this worker's port of the relay."""
    os.environ.update(launcher_environ(urls[me.index]))
    member = rpc.BackendType[backend]
    rpc.init_rpc(
        me.name,
        backend=member,
        rank=me.index,
        world_size=world_size,
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            member, init_method=urls[me.index], rpc_timeout=600, **options
        ),
    )


def call_next(me: WorkerContext) -> None:
    """Call the worker with the next rank."""
    rpc.rpc_sync(f"worker{(me.index + 1) % me.size}", nothing)


def call_first(me: WorkerContext) -> None:
    """Call worker 0, as workers call a parameter server."""
    if me.index:
        rpc.rpc_sync("worker0", nothing)


def call_all(me: WorkerContext) -> None:
    """Call all other workers at once."""
    futures = [
        rpc.rpc_async(f"worker{rank}", nothing) for rank in range(me.size) if rank != me.index
    ]
    for future in futures:
        future.wait()


def calls(me: WorkerContext) -> dict[str, int]:
    """Return the number of calls that this worker has sent, and their payload bytes."""
    return dict(me.memory["calls"])


def leave(me: WorkerContext) -> None:
    """Shut RPC down."""
    rpc.shutdown()


def nothing() -> None:
    """Do nothing; called by RPC."""
