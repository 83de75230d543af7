"""Starting a resolved backend through the hooks of installed packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rpc_backends_core._handlers import INIT, noted
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._record import ResolvedBackend


def init_backend(
    resolved: ResolvedBackend, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Initialise a backend through the hooks, and return the agent."""
    if resolved.options is None:  # the program calls init_backend itself
        resolved = replace(resolved, options=kwargs.get("rpc_backend_options"))
    handler = noted(resolved, INIT)
    token = STATE.starting.set(resolved)
    try:
        return resolved.hooks.rpc_backends_init_backend(
            backend=resolved.name,
            resolved=resolved,
            args=args,
            kwargs=MappingProxyType(dict(kwargs)),
            proceed=lambda: handler(*args, **kwargs),
        )
    finally:
        STATE.starting.reset(token)
