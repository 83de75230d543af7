"""The init handler of FAULTY_TENSORPIPE, and the backend."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc._testing import FaultyTensorPipeAgent, FaultyTensorPipeRpcBackendOptions

from rpc_backend_faulty_tensorpipe.options import construct_rpc_backend_options
from rpc_backend_tensorpipe.agents import StaticGroupAgent, start_static_agent
from rpc_backends_core.spi import (
    Backend,
    Capability,
    Group,
    RankMappingMixin,
    check_arguments,
    group_for,
)


class FaultyTensorPipeStaticAgent(StaticGroupAgent, FaultyTensorPipeAgent):
    """Torch's faulty agent in a group where every worker id equals the rank."""


class RankedFaultyTensorPipeStaticAgent(RankMappingMixin, FaultyTensorPipeStaticAgent):
    """Torch's faulty agent in a group where a process keeps its worker id from an earlier group."""


def init_backend(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: Any,
    group: Group | None = None,
) -> Any:
    """Start torch's faulty agent in a static group.

    :param group: the group that ``init_rpc`` has formed; if None, this function joins a group
        on ``store``.

    :returns: the agent, running and set as torch's current agent.
    :raises ArgumentError: ``store`` or ``rpc_backend_options`` has the wrong type.
    :raises ValueError: ``world_size`` is missing.
    """
    check_arguments(
        "FAULTY_TENSORPIPE", store, rpc_backend_options, FaultyTensorPipeRpcBackendOptions
    )
    if not world_size:
        raise ValueError(
            f"worker {name!r} passed no world_size, and FAULTY_TENSORPIPE has no dynamic groups: torch's "
            "faulty agent needs the size of the group. Pass world_size, or use TENSORPIPE."
        )
    group = group_for(
        store, name, rank, world_size, rpc_backend_options, "FAULTY_TENSORPIPE", group
    )
    # Torch's faulty agent ignores device maps, so there are none to exchange.
    return start_static_agent(
        FaultyTensorPipeStaticAgent,
        RankedFaultyTensorPipeStaticAgent,
        group,
        rpc_backend_options,
        {},
        [],
    )


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct_rpc_backend_options,
    init_backend_handler=init_backend,
    options_type=FaultyTensorPipeRpcBackendOptions,
    capabilities=frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.REJOIN,
            Capability.TORCHSCRIPT,
            Capability.FAULT_INJECTION,
            Capability.STRICT_OPTIONS,
            Capability.JOIN_RECOVERY,
            Capability.PEER_LOSS_DETECTION,
        }
    ),
    description="torch's TensorPipe agent that fails and delays chosen messages, for tests",
    spi_version=(1, 1),
)
