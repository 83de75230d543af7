"""Tasks that run in the workers of a counted group."""

from __future__ import annotations

import collections
import functools
import os
from typing import Any

from torch.distributed import rpc

from rpc_backends_cli.processes import Me

#: Seconds that a wait in the store may take before it is begun anew: never, so that the number of
#: requests does not depend on how long workers wait for each other.
_WITHOUT_END = 10_000.0
#: By which functions torch sends a call; in its module.
_SENDING = ("_invoke_rpc_builtin", "_invoke_rpc_python_udf", "_invoke_rpc_torchscript")


def prepare(me: Me) -> None:
    """Count the calls of this worker from here on, and wait in the store without a break."""
    from rpc_backends_core._group import waiting

    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # nobody of the group hosts the store
    waiting._SLICE = _WITHOUT_END
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
    me: Me, urls: list[str], backend: str, options: dict[str, Any], world_size: int | None
) -> None:
    """Join the group."""
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


def call_next(me: Me) -> None:
    """Call the worker of the next rank: a ring."""
    rpc.rpc_sync(f"worker{(me.index + 1) % me.size}", nothing)


def call_first(me: Me) -> None:
    """Call worker 0, as workers do with their parameter server."""
    if me.index:
        rpc.rpc_sync("worker0", nothing)


def call_all(me: Me) -> None:
    """Call all others, at once."""
    futures = [
        rpc.rpc_async(f"worker{other}", nothing) for other in range(me.size) if other != me.index
    ]
    for future in futures:
        future.wait()


def calls(me: Me) -> dict[str, int]:
    """Return how many calls this worker has sent, and how many bytes what they carry takes."""
    return dict(me.memory["calls"])


def leave(me: Me) -> None:
    """Shut RPC down."""
    rpc.shutdown()


def nothing() -> None:
    """Do nothing; called by RPC."""
