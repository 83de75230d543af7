"""The registry of this process, created on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._record import Record
    from rpc_backends_core._registry import Registry


def default_registry() -> Registry:
    """Return the registry of this process."""
    if STATE.registry is None:
        from rpc_backends_core._registry import Registry

        def notify(record: Record) -> None:
            from rpc_backends_core import _hooks  # late, because it imports pluggy

            _hooks.notify(registry, record)

        registry = Registry(on_loaded=notify)
        for prepare in STATE.preparations:
            prepare(registry)
        STATE.registry = STATE.registry or registry  # another thread may have set it first
    of_process: Registry = STATE.registry
    return of_process
