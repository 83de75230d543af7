"""The two handlers of ZEROMQ, and its ``Backend`` record."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions, construct_rpc_backend_options
from rpc_backend_zeromq.transport import ZeroMQTransport
from rpc_backends_agents import Settings, start_agent
from rpc_backends_core.spi import Backend, Capability, Group, group_for

NAME = "ZEROMQ"


def init_backend(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: Any,
    group: Group | None = None,
) -> Any:
    """Start an agent over ZeroMQ in a static group, or in a dynamic one if ``world_size`` is None.

    :param group: the group that ``init_rpc`` has formed. If None, the worker forms or joins one through
        ``store``.
    :returns: the agent, started and installed as the current one.
    :raises TypeError: ``store`` or ``rpc_backend_options`` has the wrong type.
    :raises ExposureError: other hosts could reach the worker's address, and it has no secret.
    """
    if not isinstance(store, dist.Store):
        raise TypeError(f"store is {store!r}; it must be a torch.distributed.Store.")
    options = rpc_backend_options
    if not isinstance(options, ZeroMQRpcBackendOptions):
        raise TypeError(
            f"rpc_backend_options is a {type(options).__name__}; {NAME} takes "
            "only ZeroMQRpcBackendOptions."
        )
    group = group_for(store, name, rank, world_size, options, NAME, group)
    return start_agent(ZeroMQTransport(options, group), group, Settings.of(options))


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct_rpc_backend_options,
    init_backend_handler=init_backend,
    options_type=ZeroMQRpcBackendOptions,
    make_transport=ZeroMQTransport,
    capabilities=frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.DYNAMIC_GROUPS,
            Capability.REJOIN,
            Capability.DEVICES,
            Capability.DEVICE_MAPS,
            Capability.TORCHSCRIPT,
            Capability.ENCRYPTION,
            Capability.PEER_LOSS_DETECTION,
            Capability.STRICT_OPTIONS,
            Capability.CLEAN_SHUTDOWN,
            Capability.JOIN_RECOVERY,
        }
    ),
    description="ZeroMQ: authenticated and encrypted, no TensorPipe",
    spi_version=(1, 1),
)
