"""Lets a worker run only the functions in RPC_ALLOWLIST, a comma-separated list."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from rpc_backends_core import hookimpl

#: The functions that torch calls when a group shuts down, and to learn the class of an RRef's value.
TORCH_CALLS = {
    "torch.distributed.rpc.api._gather_to_leader",
    "torch.distributed.rpc.api._broadcast_to_followers",
    "torch.distributed.rpc.api._rref_typeof_on_owner",
}


@hookimpl(wrapper=True)
def rpc_backends_agent() -> Generator[None, Any, Any]:
    agent = yield
    if "RPC_ALLOWLIST" not in os.environ:
        return agent
    from rpc_allowlist._native import Allowlist
    from rpc_backends_agents import intercept

    functions = TORCH_CALLS | set(os.environ["RPC_ALLOWLIST"].split(","))
    return intercept(agent, Allowlist(functions), name="allowlist", order=100)
