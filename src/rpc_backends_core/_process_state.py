"""The state of this process: one object that every other module reads and changes.

A module of its own because ``import torch`` imports it, and imports little else of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_core._bridge.session import Session
    from rpc_backends_core._hooks import Hooks
    from rpc_backends_core._registry import Registry


class ProcessState:
    """What this process holds.

    :ivar registry: made when it is first asked for; see :func:`default_registry`.
    :ivar preparations: run on the registry when it is made.
    :ivar hooks: the hook packages, loaded when they are first needed.
    :ivar session: the session that starts or runs.
    :ivar kept_stores: (init method, what keeps the store alive) of stores that this process hosts for
        others beyond its own membership.
    :ivar patches: (module, name, what torch had there) of each name that the bridge has replaced.
    :ivar autoload_error: what went wrong when ``import torch`` ran our entry point.
    :ivar had_a_group: whether an agent has run in this process before.
    :ivar nonce: (process id, a text that no other process has), once a dynamic group has asked for it.
    :ivar leaves_gracefully: whether a graceful ``shutdown`` is under way.
    """

    def __init__(self) -> None:
        self.registry: Registry | None = None
        self.preparations: list[Callable[[Registry], None]] = []
        self.hooks: Hooks | None = None
        self.session: Session | None = None
        self.kept_stores: list[tuple[Any, ...]] = []
        self.patches: list[tuple[Any, str, Any]] = []
        self.autoload_error: Exception | None = None
        self.nonce = (0, "")
        self.had_a_group = False
        self.leaves_gracefully = False


STATE = ProcessState()


def default_registry() -> Registry:
    """Return the registry of this process, made when it is first asked for."""
    if STATE.registry is None:
        from rpc_backends_core._registry import Registry

        registry = Registry(on_loaded=_notify_hooks)
        for prepare in STATE.preparations:
            prepare(registry)
        STATE.registry = STATE.registry or registry  # another thread may have been faster
    return STATE.registry


def prepare_registry(preparation: Callable[[Registry], None]) -> None:
    """Run ``preparation`` on the registry before its first use: now, or when it is made."""
    STATE.preparations.append(preparation)
    if STATE.registry is not None:
        preparation(STATE.registry)


def _notify_hooks(record: Any) -> None:
    from rpc_backends_core import _hooks  # imports pluggy, and so not before it is needed

    _hooks.notify(record)
