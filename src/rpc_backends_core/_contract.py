"""The contract for RPC backends, as types: what an author writes against.

``docs/how-to/write-a-backend.md`` is the same in words, and ``rpc-backends conformance NAME`` checks it.
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


#: Goes up when a requirement is added or becomes stricter; the conformance suite's version.
CONTRACT_VERSION = 1


class ConstructOptionsHandler(Protocol):
    """Makes the options of one worker. It starts nothing, opens nothing and waits for nothing."""

    def __call__(self, rpc_timeout: float, init_method: str, /) -> RpcBackendOptions:
        """Return the options; each option of the backend is one more keyword, best with a default.

        :param rpc_timeout: seconds that a call may take; 0 means any.
        :param init_method: URL of the place where the workers meet.
        :returns: an instance of the backend's ``options_type``.
        :raises TypeError: an option that the backend does not have, or one of a wrong type.
        :raises ValueError: an option whose value cannot be.
        """
        ...


class InitBackendHandler(Protocol):
    """Starts one worker. It is called with these keywords, in every process of the group."""

    def __call__(
        self,
        store: Store,
        name: str,
        rank: int,
        world_size: int | None,
        rpc_backend_options: Any,
    ) -> RpcAgent:
        """Return this worker's agent once the agents of all workers can be called.

        :param store: a key-value store that all workers of the group see, and they alone.
        :param name: the worker's name; no other worker of a static group has it.
        :param rank: the worker's rank.
        :param world_size: the number of workers; None for a dynamic group.
        :param rpc_backend_options: what the other handler has returned, or the program has made.
        :returns: an :class:`Agent`, made by C++ (``RpcAgent`` or a class below it).
        :raises TypeError: the store or the options are of a wrong type.
        :raises ValueError: something is asked for that the backend does not have.
        :raises RuntimeError: the worker cannot start; nothing of it may be left.
        """
        ...


@runtime_checkable
class Agent(Protocol):
    """What torch and this project call on an agent from Python; torch's C++ calls ``send`` besides."""

    @overload
    def get_worker_info(self) -> WorkerInfo: ...
    @overload
    def get_worker_info(self, name: str, /) -> WorkerInfo: ...
    @overload
    def get_worker_info(self, rank: int, /) -> WorkerInfo: ...

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Return all workers of the group, this one too; ``id`` is the rank."""
        ...

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Return when all workers have called this and no call is under way in the whole group.

        :param timeout: seconds to wait for the others; 0 for the agent's own timeout.
        """
        ...

    def sync(self) -> None:
        """Return when all workers have called this and no message is on its way."""
        ...

    def shutdown(self) -> None:
        """Stop, alone: fail the calls that wait, end all threads, close all that is open.

        It is called at the end of every shutdown, after a start that failed, and perhaps twice.
        """
        ...

    def get_metrics(self) -> dict[str, str]:
        """Return numbers about this agent as text."""
        ...

    def get_debug_info(self) -> dict[str, str]:
        """Return what helps in looking for a fault, the metrics among it."""
        ...

    def _get_device_map(self, dst: WorkerInfo, /) -> dict[torch.device, torch.device]:
        """Return this worker's device map for ``dst``; empty where there is none."""
        ...


@runtime_checkable
class LeavingAgent(Protocol):
    """An agent of a dynamic group that leaves it in a way of its own."""

    def leave_group(self, timeout: float = 0) -> None:
        """Serve what is under way, and have the other members know that this worker is gone.

        A graceful shutdown calls this instead of torch's own steps, and :meth:`Agent.shutdown` after it.

        :param timeout: seconds that each other member has to answer; 0 for the agent's own timeout.
        """
        ...


#: What declaring a capability commits a backend to.
COMMITMENTS: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.STATIC_GROUPS: "workers start together, world_size is given, shutdown is a barrier",
        Capability.DYNAMIC_GROUPS: "workers join and leave while others work; no world_size",
        Capability.REJOIN: "processes can be a group again, under other ranks and names",
        Capability.DEVICES: "devices says which accelerators a worker uses for RPC",
        Capability.DEVICE_MAPS: "tensors go from device to device as device_maps says",
        Capability.TORCHSCRIPT: "TorchScript functions can be called",
        Capability.FAULT_INJECTION: "it fails and delays messages when it is told to",
        Capability.ENCRYPTION: "nobody on the way can read or change messages",
        Capability.PEER_LOSS_DETECTION: "calls to a worker that dies fail soon, not at the timeout",
        Capability.STRICT_OPTIONS: "unknown options and values that cannot be are refused",
        Capability.CLEAN_SHUTDOWN: "after shutdown nothing of the group is open in the process",
        Capability.JOIN_RECOVERY: "a start that fails does so in time, and all can start again",
        Capability.SPARSE_LAYOUTS: "sparse tensors of every layout arrive as they were",
    }
)
