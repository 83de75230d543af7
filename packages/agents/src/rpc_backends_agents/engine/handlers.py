"""The init handler of an engine, and its ``Backend`` record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rpc_backends_agents.engine import variables
from rpc_backends_agents.engine.options import EngineOptions, GuardedOptions
from rpc_backends_agents.engine.secret import file_variable
from rpc_backends_agents.settings import Settings
from rpc_backends_agents.start import start_agent
from rpc_backends_core.spi import Backend, Capability, Group, check_arguments, group_for

#: What the agent provides on each transport that reports lost peers.
CAPABILITIES = frozenset(
    {
        Capability.STATIC_GROUPS,
        Capability.DYNAMIC_GROUPS,
        Capability.REJOIN,
        Capability.DEVICES,
        Capability.DEVICE_MAPS,
        Capability.TORCHSCRIPT,
        Capability.PEER_LOSS_DETECTION,
        Capability.STRICT_OPTIONS,
        Capability.CLEAN_SHUTDOWN,
        Capability.JOIN_RECOVERY,
    }
)


def engine_backend(
    construct: Callable[..., EngineOptions],
    init: Callable[..., Any],
    options_type: type[EngineOptions],
    make_transport: Callable[[Any, Group], Any],
    *,
    description: str,
    capabilities: Iterable[Capability] = (),
    lacks_authentication: Callable[[Any], str | None] | None = None,
    dynamic_groups: bool = True,
) -> Backend:
    """Return the record of an engine.

    :param construct: the construct handler, from :func:`construct_handler`.
    :param init: the init handler, from :func:`init_handler`.
    :param make_transport: makes the transport of one worker from its options and its group.
    :param description: one line for ``rpc-backends list``.
    :param capabilities: what the transport provides beyond :data:`CAPABILITIES`.
    :param lacks_authentication: as in :class:`Backend`.
    :param dynamic_groups: whether workers may join and leave at any time.
    """
    lacks = frozenset() if dynamic_groups else {Capability.DYNAMIC_GROUPS}
    return Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        options_type=options_type,
        make_transport=make_transport,
        capabilities=(CAPABILITIES - lacks) | frozenset(capabilities),
        description=description,
        lacks_authentication=lacks_authentication,
        spi_version=(1, 1),
    )


def lacks_secret(options: GuardedOptions) -> str | None:
    """Return why workers with these options would not prove who they are; None if they have a secret.

    For :func:`engine_backend`, as ``lacks_authentication``.
    """
    if options.shared_secret() is not None:
        return None
    return (
        "the workers have no secret. `rpc-backends secret --out FILE` makes one; set "
        f"{file_variable(options.BACKEND)} to the path of the file, for all workers."
    )


def init_handler(
    options_type: type[EngineOptions],
    make_transport: Callable[[Any, Group], Any],
    *,
    dynamic_groups: bool = True,
) -> Callable[..., Any]:
    """Return the handler that starts an agent on an engine's transport.

    :param make_transport: makes the transport of one worker from its options and its group.
    :param dynamic_groups: whether workers may join and leave at any time; if not, a program that asks for
        a dynamic group gets a ValueError.
    """

    def init_backend(
        store: Any,
        name: str,
        rank: int,
        world_size: int | None,
        rpc_backend_options: Any,
        group: Group | None = None,
    ) -> Any:
        options = rpc_backend_options
        check_arguments(options_type.BACKEND, store, options, options_type)
        if world_size is None and not dynamic_groups:
            raise ValueError(
                f"{options_type.BACKEND} has no dynamic groups. Pass world_size to init_rpc."
            )
        variables.warn_of_unknown(options.BACKEND, options.variables())
        joined = group_for(store, name, rank, world_size, options, options_type.BACKEND, group)
        return start_agent(make_transport(options, joined), joined, Settings.of(options))

    init_backend.__module__ = options_type.__module__.rpartition(".")[0] + ".handlers"
    init_backend.__qualname__ = init_backend.__name__
    init_backend.__doc__ = f"""Start an agent of {options_type.BACKEND} in a group.

    The group is static, or dynamic if ``world_size`` is None.

    :param group: the group that ``init_rpc`` has formed. If None, the worker forms or joins one through
        ``store``.
    :returns: the agent, started and installed as the current one.
    :raises ArgumentError: ``store`` or ``rpc_backend_options`` has the wrong type.
    """
    return init_backend
