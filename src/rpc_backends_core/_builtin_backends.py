"""Torch's own backends: their options and capabilities, which torch itself does not declare.

The capabilities were measured with the conformance suite on torch 2.13; `rpc-backends conformance
NAME` repeats the measurement.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from rpc_backends_core._backend import Backend, Capability
from rpc_backends_core._errors import BackendLoadError
from rpc_backends_core._record import Record

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

#: The backends that need TensorPipe, each with its package and with what a program gets without it.
_OF_TENSORPIPE = {
    "TENSORPIPE": (
        "rpc-backend-tensorpipe",
        "init_rpc starts another installed backend in its place: ZEROMQ, else UCX, else one of another "
        "package.",
    ),
    "FAULTY_TENSORPIPE": (
        "rpc-backend-faulty-tensorpipe",
        "rpc-backends-faults injects faults on every other backend.",
    ),
}


def is_tensorpipe_missing() -> bool:
    """Return whether the imported torch has RPC, and was built without TensorPipe."""
    rpc = sys.modules.get("torch.distributed.rpc")
    return rpc is not None and rpc.is_available() and not hasattr(rpc, "TensorPipeAgent")


def unavailable(record: Record) -> Record:
    """Return a record marked as unavailable if it needs TensorPipe and torch was built without it."""
    package, instead = _OF_TENSORPIPE.get(record.name, (None, ""))
    needs_it = package is not None and (record.source == "torch" or record.distribution == package)
    if not needs_it or not is_tensorpipe_missing():
        return record
    error = BackendLoadError(
        f"this torch was built without TensorPipe, which {record.name} needs. {instead}"
    )
    # Without the type of its options: that of torch's own backend is replaced later.
    return replace(record, state="unavailable", error=error, backend=None, options_type=None)


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
