"""Torch's own backends: what they declare, for which torch has no place, and their options.

Measured with the conformance suite against torch 2.13; `rpc-backends conformance NAME` measures it again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from rpc_backends_core._backend import Backend, Capability

CAPABILITIES = {
    "TENSORPIPE": frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.DYNAMIC_GROUPS,
            # No device maps: its engine has them, and its handler drops the option.
            Capability.TORCHSCRIPT,
            Capability.PEER_LOSS_DETECTION,
        }
    ),
    "FAULTY_TENSORPIPE": frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.TORCHSCRIPT,
            Capability.FAULT_INJECTION,
            Capability.PEER_LOSS_DETECTION,
        }
    ),
}


def options_type_of(name: str) -> type | None:
    """Return the options class of a backend that torch itself registers, None for any other name."""
    if name == "TENSORPIPE":
        return getattr(sys.modules["torch.distributed.rpc"], "TensorPipeRpcBackendOptions", None)
    if name == "FAULTY_TENSORPIPE":
        testing = sys.modules.get("torch.distributed.rpc._testing")
        return getattr(testing, "FaultyTensorPipeRpcBackendOptions", None)
    return None


def registered_backend(
    name: str,
    handlers: tuple[Any, Any] | Backend,
    options_type: type | None,
    *,
    torch_own: bool,
) -> Backend:
    """Return the backend that a pair of handlers stands for; torch's own with what they can do."""
    if isinstance(handlers, Backend):
        return handlers if options_type is None else replace(handlers, options_type=options_type)
    construct, init = handlers
    return Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        options_type=options_type,
        capabilities=CAPABILITIES.get(name, frozenset()) if torch_own else frozenset(),
    )
