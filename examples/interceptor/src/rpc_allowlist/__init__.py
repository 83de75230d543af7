"""Has a worker run only the functions that RPC_ALLOWLIST names, separated by commas."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from rpc_backends_core import hookimpl

#: Called when a group ends.
TORCHS_OWN = {
    "torch.distributed.rpc.api._gather_to_leader",
    "torch.distributed.rpc.api._broadcast_to_followers",
}


@hookimpl(wrapper=True)
def rpc_backends_agent() -> Generator[None, Any, Any]:
    agent = yield
    if "RPC_ALLOWLIST" not in os.environ:
        return agent
    from rpc_allowlist._native import Allowlist
    from rpc_backends_agents import intercept

    functions = TORCHS_OWN | set(os.environ["RPC_ALLOWLIST"].split(","))
    return intercept(agent, Allowlist(functions), name="allowlist", order=100)
