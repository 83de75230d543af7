"""Installing an agent: torch calls this for the agent of every backend, before it is current."""

from __future__ import annotations

from typing import Any

from rpc_backends_core import _hooks
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._process_state import STATE


def set_and_start_agent(agent: Any) -> None:
    """Install an agent, after the hooks have seen it."""
    chosen = agent_to_install(agent)
    if STATE.session is not None:
        # C++ keeps the agents alive but not their Python side, and so not their Python methods.
        STATE.session.agents.extend([agent, chosen])
    torch_internals.original_api("_set_and_start_rpc_agent")(chosen)


def agent_to_install(agent: Any) -> Any:
    """Show the agent that is about to be installed to the hooks; return the one to install."""
    resolved = STATE.starting.get()
    hooks = resolved.hooks if resolved else _hooks.loaded_hooks(default_registry())
    return hooks.rpc_backends_agent(
        backend=resolved.name if resolved else None, resolved=resolved, agent=agent
    )
