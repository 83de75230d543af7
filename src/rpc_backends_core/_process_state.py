"""The state of this process: one object that the other modules read and change.

It imports no other module of the package, so its attributes are untyped.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any


class ProcessState:
    """The package's state in this process.

    :ivar registry: the `Registry`, created on first use; see `_default_registry`.
    :ivar preparations: functions to call with the registry when it is created.
    :ivar hooks: the `Hooks`, loaded on first use.
    :ivar session: the `Session` that is starting or running.
    :ivar running: the `Running` agent; None if RPC does not run.
    :ivar kept_stores: (init method, objects that keep the store alive) of stores that this process
        still hosts for other workers after leaving the group.
    :ivar patches: (module, name, torch's value) of each name that the bridge has replaced.
    :ivar autoload_error: the error raised when ``import torch`` ran our entry point.
    :ivar had_a_group: whether an agent has run in this process before.
    :ivar nonce: (process id, a string unique to the process), created for a dynamic group.
    :ivar exit_functions: functions to call when the process exits; see `_exit`.
    :ivar runs_exit_functions: whether they have been registered.
    :ivar starting: the backend that this thread is initialising.
    :ivar leaves_gracefully: whether a graceful ``shutdown`` is running.
    :ivar handled: the exception that the program handled when it called ``shutdown``.
    """

    def __init__(self) -> None:
        self.registry: Any = None
        self.preparations: list[Callable[[Any], None]] = []
        self.hooks: Any = None
        self.session: Any = None
        self.running: Any = None
        self.kept_stores: list[tuple[Any, ...]] = []
        self.patches: list[tuple[Any, str, Any]] = []
        self.autoload_error: Exception | None = None
        self.nonce = (0, "")
        self.had_a_group = False
        self.exit_functions: list[Callable[[], object]] = []
        self.runs_exit_functions = False
        self.starting: ContextVar[Any] = ContextVar("starting", default=None)
        self.leaves_gracefully = False
        self.handled: BaseException | None = None

    def prepare_registry(self, preparation: Callable[[Any], None]) -> None:
        """Call ``preparation`` with the registry before its first use: now, or when it is created."""
        self.preparations.append(preparation)
        if self.registry is not None:
            preparation(self.registry)

    def run_at_exit(self) -> None:
        """Make this process call the exit functions when it exits; a second call does nothing."""
        if not self.runs_exit_functions:
            self.runs_exit_functions = True
            atexit.register(self._run_exit_functions)

    def _run_exit_functions(self) -> None:
        with contextlib.ExitStack() as stack:
            for function in self.exit_functions:
                stack.callback(function)


STATE = ProcessState()
