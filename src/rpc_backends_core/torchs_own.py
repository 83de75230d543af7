"""What torch's own backends declare: torch has no place for it, so it is kept here.

Measured with the conformance suite against torch 2.13; `rpc-backends conformance NAME` measures it again.
"""

from __future__ import annotations

from rpc_backends_core.backend import Capability

CAPABILITIES = {
    "TENSORPIPE": frozenset(
        {
            Capability.STATIC_GROUPS,
            Capability.DYNAMIC_GROUPS,
            Capability.DEVICES,
            Capability.DEVICE_MAPS,
            Capability.TORCHSCRIPT,
        }
    ),
    "FAULTY_TENSORPIPE": frozenset(
        {Capability.STATIC_GROUPS, Capability.TORCHSCRIPT, Capability.FAULT_INJECTION}
    ),
}
