"""Starting a resolved backend through the hooks of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rpc_backends_core import _hooks
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._record import ResolvedBackend
    from rpc_backends_core._registry import Registry


def init_backend(
    resolved: ResolvedBackend, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Initialise a backend through the hooks, and return the agent."""
    handler = resolved.backend.init_backend_handler
    token = STATE.starting.set(resolved)
    try:
        return resolved.hooks.rpc_backends_init_backend(
            backend=resolved.name,
            resolved=resolved,
            args=args,
            kwargs=kwargs,
            proceed=lambda: handler(*args, **kwargs),
        )
    finally:
        STATE.starting.reset(token)


def agent_to_install(registry: Registry, agent: Any) -> Any:
    """Show the agent that is about to be installed to the hooks; return the one to install."""
    resolved = STATE.starting.get()
    hooks = resolved.hooks if resolved else _hooks.loaded_hooks(registry)
    return hooks.rpc_backends_agent(
        backend=resolved.name if resolved else None, resolved=resolved, agent=agent
    )
