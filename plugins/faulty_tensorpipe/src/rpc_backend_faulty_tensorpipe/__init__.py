"""FAULTY_TENSORPIPE for ``torch.distributed.rpc``: an installable backend built on torch's own agent."""

from __future__ import annotations

from torch.distributed import rpc

if not hasattr(rpc, "TensorPipeAgent"):
    raise ImportError(
        "FAULTY_TENSORPIPE cannot be used: this torch was built without TensorPipe. "
        "rpc-backends-faults injects faults on every other backend."
    )

from rpc_backend_faulty_tensorpipe.handlers import BACKEND

__all__ = ["BACKEND"]
__version__ = "0.1.0"
