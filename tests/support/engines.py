"""The backends on the agent, over each kind of connection, for tests that run on all of them."""

from __future__ import annotations

from typing import Any

from support import steps
from support.workers import WorkerContext

#: Options of `steps.join`, by the name that the tests show.
ENGINES: dict[str, dict[str, Any]] = {
    "ZEROMQ": {"backend": "ZEROMQ"},
    "ZEROMQ over TCP": {"backend": "ZEROMQ", "unix_sockets": False},
    "UCX": {"backend": "UCX"},
    "UCX over TCP": {"backend": "UCX", "transports": ["tcp"], "trusted_network": True},
}


def join(
    me: WorkerContext, url: str, engine: str, *, dynamic: bool = False, **options: Any
) -> None:
    """Join a group on one of the engines."""
    steps.join(me, url, world_size=None if dynamic else 0, **{**ENGINES[engine], **options})
