"""Torch's own backends: their options and capabilities, which torch itself does not declare.

The capabilities were measured with the conformance suite on torch 2.13; `rpc-backends conformance
NAME` repeats the measurement.
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
            # No device maps: the agent supports them, but torch's handler drops the option.
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
    """Return the options class of a backend built into torch; None for any other name."""
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
    """Return the :class:`Backend` for a pair of handlers, with capabilities if it is torch's own."""
    if isinstance(handlers, Backend):
        return handlers if options_type is None else replace(handlers, options_type=options_type)
    construct, init = handlers
    return Backend(
        construct_rpc_backend_options_handler=construct,
        init_backend_handler=init,
        options_type=options_type,
        capabilities=CAPABILITIES.get(name, frozenset()) if torch_own else frozenset(),
    )
