"""``TensorPipeRpcBackendOptions`` for a torch without TensorPipe, where torch's cannot be constructed."""

from __future__ import annotations

from typing import Any

from torch.distributed.rpc import RpcBackendOptions
from torch.distributed.rpc.constants import (
    DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC,
)


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    """The options of torch's TENSORPIPE, with torch's names, defaults and errors.

    ``init_rpc`` converts them to those of the backend that it starts in place of TENSORPIPE.

    :param num_worker_threads: number of threads that execute requests.
    :param rpc_timeout: default timeout of calls in seconds; 0 means no timeout.
    :param init_method: URL of the rendezvous.
    :param device_maps: by callee, a map from this worker's devices to the callee's devices.
    :param devices: the CUDA devices of this worker that RPC may use.
    :param _transports: transports of TensorPipe; other backends do not have them.
    :param _channels: channels of TensorPipe; other backends do not have them.
    :ivar device_maps: ``device_maps`` with :class:`torch.device` in it.
    :ivar devices: ``devices`` as a list of :class:`torch.device`.
    :raises TypeError: a value is of a wrong type.
    :raises RuntimeError: ``rpc_timeout`` is negative, or there is no worker thread.
    :raises ValueError: two devices are mapped to one, or ``devices`` has one that is not of CUDA.
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
        device_maps: dict[str, dict[Any, Any]] | None = None,
        devices: list[Any] | None = None,
        _transports: list[str] | None = None,
        _channels: list[str] | None = None,
    ) -> None:
        from rpc_backends_core._bridge import torch_internals

        _check(rpc_timeout, init_method, num_worker_threads)
        super().__init__(rpc_timeout, init_method)
        self.num_worker_threads = num_worker_threads
        self.device_maps = {
            callee: torch_internals.device_map(mapped)
            for callee, mapped in (device_maps or {}).items()
        }
        self.devices = torch_internals.device_list(devices or [])

    def set_device_map(self, to: str, device_map: dict[Any, Any]) -> None:
        """Add entries to the device map for a callee.

        :param to: the callee's name.
        :param device_map: devices of the callee by this worker's devices.
        :raises ValueError: two devices are mapped to one, or one device to two.
        """
        from rpc_backends_core._bridge import torch_internals

        known = self.device_maps.setdefault(to, {})
        added = torch_internals.device_map(device_map)
        for mine, theirs in added.items():
            if known.get(mine, theirs) != theirs:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {mine} to {theirs} "
                    f"and {known[mine]}"
                )
        known.update(added)

    def set_devices(self, devices: list[Any]) -> None:
        """Set the CUDA devices of this worker that RPC may use."""
        from rpc_backends_core._bridge import torch_internals

        self.devices = torch_internals.device_list(devices)


def _check(rpc_timeout: float, init_method: str, num_worker_threads: int) -> None:
    """Refuse what torch's C++ refuses, with the same classes of errors."""
    from rpc_backends_core import _handlers

    given = {
        "rpc_timeout": rpc_timeout,
        "init_method": init_method,
        "num_worker_threads": num_worker_threads,
    }
    if problem := _handlers.problem_of("TENSORPIPE", given):
        raise (RuntimeError if _handlers.have_right_types(given) else TypeError)(problem)
    if num_worker_threads < 1:
        raise RuntimeError(f"num_worker_threads must be positive, got {num_worker_threads}")
