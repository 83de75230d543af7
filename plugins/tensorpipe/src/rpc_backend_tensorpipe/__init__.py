"""TENSORPIPE for ``torch.distributed.rpc``: an installable backend built on torch's own agent."""

from __future__ import annotations

from torch.distributed import rpc

if not hasattr(rpc, "TensorPipeAgent"):
    raise ImportError(
        "TENSORPIPE cannot be used: this torch was built without TensorPipe. "
        "init_rpc then starts another installed backend in place of TENSORPIPE, such as ZEROMQ."
    )

from rpc_backend_tensorpipe.handlers import BACKEND

__all__ = ["BACKEND"]
__version__ = "0.1.0"
