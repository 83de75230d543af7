"""The state of this process: one object that every other module reads and changes.

It stands below all other modules and imports none of them, so what it holds has no types here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class ProcessState:
    """What this process holds.

    :ivar registry: the `Registry`, made when it is first asked for; see `_default_registry`.
    :ivar preparations: run on the registry when it is made.
    :ivar hooks: the `Hooks`, loaded when they are first needed.
    :ivar session: the `Session` that starts or runs.
    :ivar kept_stores: (init method, what keeps the store alive) of stores that this process hosts for
        others beyond its own membership.
    :ivar patches: (module, name, what torch had there) of each name that the bridge has replaced.
    :ivar autoload_error: what went wrong when ``import torch`` ran our entry point.
    :ivar had_a_group: whether an agent has run in this process before.
    :ivar nonce: (process id, a text that no other process has), once a dynamic group has asked for it.
    :ivar starting: the backend that is being initialised in this thread.
    :ivar leaves_gracefully: whether a graceful ``shutdown`` is under way.
    """

    def __init__(self) -> None:
        self.registry: Any = None
        self.preparations: list[Callable[[Any], None]] = []
        self.hooks: Any = None
        self.session: Any = None
        self.kept_stores: list[tuple[Any, ...]] = []
        self.patches: list[tuple[Any, str, Any]] = []
        self.autoload_error: Exception | None = None
        self.nonce = (0, "")
        self.had_a_group = False
        self.starting: ContextVar[Any] = ContextVar("starting", default=None)
        self.leaves_gracefully = False

    def prepare_registry(self, preparation: Callable[[Any], None]) -> None:
        """Run ``preparation`` on the registry before its first use: now, or when it is made."""
        self.preparations.append(preparation)
        if self.registry is not None:
            preparation(self.registry)


STATE = ProcessState()
