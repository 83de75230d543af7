"""The contract for RPC backends, as types that backend authors implement.

``docs/how-to/write-a-backend.md`` describes it in prose, and ``rpc-backends conformance NAME`` tests it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

from rpc_backends_core._backend import Backend, Capability

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store
    from torch.distributed.rpc import RpcAgent, RpcBackendOptions, WorkerInfo

__all__ = [
    "COMMITMENTS",
    "CONTRACT_VERSION",
    "Agent",
    "Backend",
    "Capability",
    "ConstructOptionsHandler",
    "InitBackendHandler",
    "LeavingAgent",
]


#: The conformance suite's version. It increases when a requirement is added or becomes stricter.
CONTRACT_VERSION = 1


class ConstructOptionsHandler(Protocol):
    """Constructs the options of one worker. It starts nothing, opens nothing and never waits."""

    def __call__(self, rpc_timeout: float, init_method: str, /) -> RpcBackendOptions:
        """Return the options; each option of the backend is one more keyword, ideally with a default.

        :param rpc_timeout: time limit of a call in seconds; 0 for no limit.
        :param init_method: URL of the rendezvous.
        :returns: an instance of the backend's ``options_type``.
        :raises TypeError: the backend has no such option, or a value has the wrong type.
        :raises ValueError: an option has an invalid value.
        """
        ...


class InitBackendHandler(Protocol):
    """Starts one worker. Called with these keywords in every process of the group."""

    def __call__(
        self,
        store: Store,
        name: str,
        rank: int,
        world_size: int | None,
        rpc_backend_options: Any,
    ) -> RpcAgent:
        """Return this worker's agent once the agents of all workers accept calls.

        :param store: a key-value store shared by the workers of this group only.
        :param name: the worker's name, unique in a static group.
        :param rank: the worker's rank.
        :param world_size: the number of workers; None for a dynamic group.
        :param rpc_backend_options: the options, made by the other handler or by the program.
        :returns: an :class:`Agent` implemented in C++ (``RpcAgent`` or a subclass).
        :raises TypeError: the store or the options have the wrong type.
        :raises ValueError: the arguments ask for something the backend does not support.
        :raises RuntimeError: the worker cannot start; the handler has released everything it opened.
        """
        ...


@runtime_checkable
class Agent(Protocol):
    """The methods that torch and this project call from Python; torch's C++ also calls ``send``."""

    @overload
    def get_worker_info(self) -> WorkerInfo: ...
    @overload
    def get_worker_info(self, name: str, /) -> WorkerInfo: ...
    @overload
    def get_worker_info(self, rank: int, /) -> WorkerInfo: ...

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group, including this one; ``id`` is the rank."""
        ...

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Return when all workers have called this and no call is running anywhere in the group.

        :param timeout: seconds to wait for the other workers; 0 for the agent's own timeout.
        """
        ...

    def sync(self) -> None:
        """Return when all workers have called this and no message is in flight."""
        ...

    def shutdown(self) -> None:
        """Stop without waiting for other workers: fail pending calls, end threads, close everything.

        Called at the end of every shutdown and after a failed start, possibly twice.
        """
        ...

    def get_metrics(self) -> dict[str, str]:
        """Return metrics of this agent; the values are numbers as text."""
        ...

    def get_debug_info(self) -> dict[str, str]:
        """Return debugging information, including the metrics."""
        ...

    def _get_device_map(self, dst: WorkerInfo, /) -> dict[torch.device, torch.device]:
        """Return this worker's device map for ``dst``; empty if there is none."""
        ...


@runtime_checkable
class LeavingAgent(Protocol):
    """An agent with its own procedure for leaving a dynamic group."""

    def leave_group(self, timeout: float = 0) -> None:
        """Finish the calls in progress, and make sure the other members know that this worker has left.

        A graceful shutdown calls this instead of torch's own steps, then :meth:`Agent.shutdown`.

        :param timeout: seconds each other member has to answer; 0 for the agent's own timeout.
        """
        ...


#: What a backend promises by declaring a capability.
COMMITMENTS: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.STATIC_GROUPS: "all workers start together with a world_size; shutdown is a barrier",
        Capability.DYNAMIC_GROUPS: "workers join and leave at any time, without a world_size",
        Capability.REJOIN: "after shutdown, processes can form a group again, with other ranks and names",
        Capability.DEVICES: "the option devices selects the accelerators that a worker uses for RPC",
        Capability.DEVICE_MAPS: "tensors move between devices as the option device_maps says",
        Capability.TORCHSCRIPT: "TorchScript functions can be called remotely",
        Capability.FAULT_INJECTION: "it can drop and delay messages on request",
        Capability.ENCRYPTION: "messages cannot be read or changed in transit",
        Capability.PEER_LOSS_DETECTION: "calls to a dead worker fail promptly, not at the timeout",
        Capability.STRICT_OPTIONS: "unknown options and invalid values are rejected",
        Capability.CLEAN_SHUTDOWN: "shutdown releases all sockets, threads and files of the group",
        Capability.JOIN_RECOVERY: "a failed start ends in time, and all workers can start again",
        Capability.SPARSE_LAYOUTS: "sparse tensors of every layout arrive unchanged",
    }
)
