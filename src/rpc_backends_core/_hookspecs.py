"""The seams where an installed package may observe, wrap or replace: pluggy hook specifications.

A hook package declares an object (a module, say) in the entry-point group ``rpc.backends.hooks`` and
marks functions of these names with :data:`hookimpl`. Wrappers (``@hookimpl(wrapper=True)``) go around
what happens; a plain implementation that returns something takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rpc_backends_core._record import Record, ResolvedBackend

PROJECT = "rpc_backends"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Specs:
    """Every hook there is. A hook takes the arguments it needs; ``proceed`` is the core's own."""

    @hookspec(firstresult=True)
    def rpc_backends_construct_options(
        self,
        backend: str,
        rpc_timeout: float,
        init_method: str,
        options: Mapping[str, Any],
        proceed: Callable[[], Any],
    ) -> Any:
        """Construct the options of ``backend``.

        :param rpc_timeout: seconds, 0 for never.
        :param options: the keywords the program gave.
        :returns: an instance of the backend's options type.
        """

    @hookspec(firstresult=True)
    def rpc_backends_init_backend(
        self,
        backend: str,
        resolved: ResolvedBackend,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        proceed: Callable[[], Any],
    ) -> Any:
        """Initialise ``backend``.

        :param resolved: the backend's record, the backend, and its options where they are known.
        :param kwargs: ``store``, ``name``, ``rank``, ``world_size``, ``rpc_backend_options``, and
            ``group`` for a backend that takes it.
        :returns: the agent.
        """

    @hookspec(firstresult=True)
    def rpc_backends_agent(
        self,
        backend: str | None,
        resolved: ResolvedBackend | None,
        agent: Any,
    ) -> Any:
        """See the agent that is about to be installed and started, and replace it perhaps.

        Every agent passes here, whichever backend it is from, before it is current and before
        ``RRefContext`` is made. A wrapper calls ``agent = yield`` and returns that agent or its own.

        :param backend: its name, None where the agent was not made by ``init_rpc``; so is ``resolved``.
        :returns: the agent to install.
        """

    @hookspec
    def rpc_backends_loaded(self, record: Record) -> None:
        """Learn that an installed backend has been loaded."""

    @hookspec
    def rpc_backends_failed(self, record: Record) -> None:
        """Learn that an installed backend could not be loaded; ``record.error`` says why."""


class Defaults:
    """What happens without any hook package: called last, it does the work of the call."""

    @hookimpl(trylast=True)
    def rpc_backends_construct_options(self, proceed: Callable[[], Any]) -> Any:
        """Call the backend's handler."""
        return proceed()

    @hookimpl(trylast=True)
    def rpc_backends_init_backend(self, proceed: Callable[[], Any]) -> Any:
        """Call the backend's handler."""
        return proceed()

    @hookimpl(trylast=True)
    def rpc_backends_agent(self, agent: Any) -> Any:
        """Install the agent as it is."""
        return agent
