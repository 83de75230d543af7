"""The hooks that an installed package can implement, as pluggy hook specifications.

A hook package declares an object (a module, say) in the entry-point group ``rpc.backends.hooks`` and
marks functions of these names with :data:`hookimpl`. A wrapper (``@hookimpl(wrapper=True)``) runs
around the operation; a plain implementation that returns a value replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rpc_backends_core._group.terms import GroupTerm
    from rpc_backends_core._record import Record, ResolvedBackend

PROJECT = "rpc_backends"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Specs:
    """All hooks. An implementation names only the arguments it needs; ``proceed`` is for the core."""

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

        :param rpc_timeout: seconds; 0 for no limit.
        :param options: the keywords that the program passed, read-only.
        :returns: an instance of the backend's options type.
        """

    @hookspec(firstresult=True)
    def rpc_backends_start(
        self,
        backend: str,
        resolved: ResolvedBackend,
        name: str,
        rank: int,
        world_size: int | None,
        proceed: Callable[[], Any],
    ) -> None:
        """Start a worker: meet the other workers, initialise the backend, and install its agent.

        :param resolved: the backend's record, the backend, and its options.
        :param name: the worker's name.
        :param rank: -1 if the rendezvous decides it.
        :param world_size: None for a dynamic group.
        """

    @hookspec
    def rpc_backends_terms(self, backend: str) -> GroupTerm | None:
        """State something of this worker to its group, and demand it of the other members.

        Called before the workers meet. A group does not form if a member lacks what another one demands.

        :returns: None for nothing.
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

        :param resolved: the backend's record, the backend, and its options if they are known.
        :param args: positional arguments; none if ``init_rpc`` starts the backend.
        :param kwargs: read-only; ``store``, ``name``, ``rank``, ``world_size``,
            ``rpc_backend_options``, and ``group`` for a backend that accepts it.
        :returns: the agent.
        """

    @hookspec(firstresult=True)
    def rpc_backends_agent(
        self,
        backend: str | None,
        resolved: ResolvedBackend | None,
        agent: Any,
    ) -> Any:
        """Receive the agent that is about to be installed and started; may replace it.

        Called for the agents of all backends, before the agent is current and before ``RRefContext``
        is created. A wrapper calls ``agent = yield`` and returns that agent or its own.

        :param backend: the backend's name. Like ``resolved``, None if ``init_rpc`` did not create the
            agent.
        :returns: the agent to install.
        """

    @hookspec
    def rpc_backends_loaded(self, record: Record) -> None:
        """React to the loading of an installed backend."""

    @hookspec
    def rpc_backends_failed(self, record: Record) -> None:
        """React to an installed backend that failed to load; ``record.error`` is the reason."""


class Defaults:
    """The default implementations. They run last and do the actual work."""

    @hookimpl(trylast=True)
    def rpc_backends_construct_options(self, proceed: Callable[[], Any]) -> Any:
        """Call the backend's handler."""
        return proceed()

    @hookimpl(trylast=True)
    def rpc_backends_start(self, proceed: Callable[[], Any]) -> Any:
        """Start the worker."""
        return proceed()

    @hookimpl(trylast=True)
    def rpc_backends_init_backend(self, proceed: Callable[[], Any]) -> Any:
        """Call the backend's handler."""
        return proceed()

    @hookimpl(trylast=True)
    def rpc_backends_agent(self, agent: Any) -> Any:
        """Return the agent unchanged."""
        return agent
