"""The two handlers of TENSORPIPE, and the backend that consists of them."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import TensorPipeRpcBackendOptions
from torch.distributed.rpc.constants import DEFAULT_NUM_WORKER_THREADS

from rpc_backends_core.spi import Backend, Capability, Group, check_arguments, group_for


def construct_rpc_backend_options(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
    device_maps: dict[str, dict[Any, Any]] | None = None,
    devices: list[Any] | None = None,
    _transports: list[str] | None = None,
    _channels: list[str] | None = None,
) -> TensorPipeRpcBackendOptions:
    """Construct torch's ``TensorPipeRpcBackendOptions``; accepts every option of that class.

    :param rpc_timeout: default timeout of calls in seconds; 0 means no timeout.
    :param init_method: URL of the rendezvous.
    :param num_worker_threads: number of threads that execute requests.
    :param device_maps: by callee, a map from this worker's devices to the callee's devices.
    :param devices: the devices of this worker that RPC may use.
    :param _transports: the TensorPipe transports to use, preferred first.
    :param _channels: the TensorPipe channels to use, preferred first.
    :raises TypeError: an option is unknown.
    """
    return TensorPipeRpcBackendOptions(
        num_worker_threads=num_worker_threads,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        device_maps=device_maps,
        devices=devices,
        _transports=_transports,
        _channels=_channels,
    )


def init_backend(
    store: Any,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: Any,
    group: Group | None = None,
) -> Any:
    """Start a TensorPipe agent in a static group, or in a dynamic group if ``world_size`` is None.

    :param group: the group that ``init_rpc`` has formed; with None, this joins a group on ``store``.

    :returns: the agent, running and set as torch's current agent.
    :raises ArgumentError: ``store`` or ``rpc_backend_options`` has the wrong type.
    :raises ValueError: a worker's device maps are wrong; all workers of a static group get this error.
    """
    check_arguments("TENSORPIPE", store, rpc_backend_options, TensorPipeRpcBackendOptions)
    # Only the module in use is imported: the other import would add a fifth to the start-up time.
    if world_size:
        from rpc_backend_tensorpipe import static_group as kind
    else:
        from rpc_backend_tensorpipe import dynamic_group as kind  # type: ignore[no-redef]
    group = group_for(store, name, rank, world_size, rpc_backend_options, "TENSORPIPE", group)
    return kind.start(group, rpc_backend_options)


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct_rpc_backend_options,
    init_backend_handler=init_backend,
    options_type=TensorPipeRpcBackendOptions,
    capabilities=frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.DYNAMIC_GROUPS,
            Capability.REJOIN,
            Capability.DEVICES,
            Capability.DEVICE_MAPS,
            Capability.TORCHSCRIPT,
            Capability.STRICT_OPTIONS,
            Capability.JOIN_RECOVERY,
            Capability.PEER_LOSS_DETECTION,
        }
    ),
    description="torch's TensorPipe agent: shared memory, TCP, InfiniBand, CUDA",
    spi_version=(1, 1),
)
