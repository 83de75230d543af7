"""The settings of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torch.distributed.rpc.constants import DEFAULT_NUM_WORKER_THREADS, DEFAULT_RPC_TIMEOUT_SEC

if TYPE_CHECKING:
    import torch

#: The settings that a backend may leave out: then it sends CPU tensors only.
_DEVICES = ("device_maps", "devices")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of an agent that do not depend on its transport, and their defaults.

    :ivar num_worker_threads: how many requests run at the same time.
    :ivar rpc_timeout: default timeout of calls in seconds; 0 means no timeout.
    :ivar max_message_bytes: a call with a larger message fails, at the sender and at the receiver, unless
        the transport rejects the message earlier and closes the connection (ZEROMQ does). The default is
        more than programs send, and less than the memory of a host.
    :ivar max_unanswered_bytes: the most bytes of requests from one worker to another that may be
        unanswered. At the limit, a call waits at the caller; the callee refuses requests beyond it. Each
        request counts 1 KiB more than its message.
    :ivar device_maps: by callee, a map from this worker's devices to the callee's devices.
    :ivar devices: the accelerators that RPC uses here; an empty list means those in the device maps.
    """

    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS
    rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC
    max_message_bytes: int = 16 << 30
    max_unanswered_bytes: int = 1 << 30
    device_maps: dict[str, dict[torch.device, torch.device]] = field(default_factory=dict)
    devices: list[torch.device] = field(default_factory=list)

    @classmethod
    def of(cls, options: Any) -> Settings:
        """Return the settings that a backend's options have as attributes of the same names.

        A backend may leave out ``device_maps`` and ``devices``: then it sends CPU tensors only.
        """
        names = {field.name for field in fields(cls)}
        optional = {name for name in _DEVICES if not hasattr(options, name)}
        return cls(**{name: getattr(options, name) for name in names - optional})

    def native(self) -> dict[str, Any]:
        """Return the arguments that the agent in C++ takes by these names: all except the devices."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _DEVICES
        }
