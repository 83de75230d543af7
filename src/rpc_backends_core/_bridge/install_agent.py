"""Installing an agent: torch calls this for every backend's agent before making it current."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import RpcAgent

from rpc_backends_core import _handlers, _hooks
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._bridge.running import Running
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import BackendContractError, HookError
from rpc_backends_core._process_state import STATE


def set_and_start_agent(agent: Any) -> None:
    """Pass an agent through the hooks, then install and start it."""
    chosen = agent_to_install(agent)
    if not isinstance(chosen, RpcAgent):
        raise _not_an_agent(agent, chosen)
    if STATE.session is not None:
        # C++ keeps only the C++ part of an agent alive; its Python methods need this reference.
        STATE.session.agents.extend([agent, chosen])
    resolved = STATE.starting.get()
    if resolved is not None:
        STATE.running = Running(resolved, chosen, is_wrapped=chosen is not agent)
    torch_internals.original_api("_set_and_start_rpc_agent")(chosen)


def agent_to_install(agent: Any) -> Any:
    """Pass an agent through the hooks; return the agent to install."""
    resolved = STATE.starting.get()
    hooks = resolved.hooks if resolved else _hooks.loaded_hooks(default_registry())
    return hooks.rpc_backends_agent(
        backend=resolved.name if resolved else None, resolved=resolved, agent=agent
    )


def _not_an_agent(agent: Any, chosen: Any) -> BackendContractError | HookError:
    resolved = STATE.starting.get()
    if chosen is not agent:
        hooks = resolved.hooks if resolved else _hooks.loaded_hooks(default_registry())
        packages = " or ".join(_handlers.hook_packages(hooks, "rpc_backends_agent"))
        return HookError(
            f"a hook rpc_backends_agent of {packages} returned {_handlers.shown(chosen)}; it must "
            "return the agent to install, a torch.distributed.rpc.RpcAgent. Fix or uninstall the "
            "package."
        )
    if resolved is not None:
        return _handlers.wrong_agent(resolved, agent)
    return BackendContractError(
        f"{_handlers.shown(agent)}, cannot be installed as the RPC agent: it is not a "
        "torch.distributed.rpc.RpcAgent. Pass the agent that the backend has made."
    )
