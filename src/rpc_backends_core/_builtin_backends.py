"""What torch's own backends declare: torch has no place for it, so it is kept here.

Measured with the conformance suite against torch 2.13; `rpc-backends conformance NAME` measures it again.
"""

from __future__ import annotations

from rpc_backends_core._backend import Capability

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
