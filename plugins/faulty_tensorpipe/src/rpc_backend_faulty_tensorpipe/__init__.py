"""FAULTY_TENSORPIPE for ``torch.distributed.rpc``: an installable backend built on torch's own agent."""

from __future__ import annotations

from rpc_backend_faulty_tensorpipe.handlers import BACKEND

__all__ = ["BACKEND"]
__version__ = "0.1.0"
