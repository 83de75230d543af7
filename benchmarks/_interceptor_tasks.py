"""Tasks that run in the workers of `interceptors.py`."""

from __future__ import annotations

import pickle
from typing import Any

from torch.distributed import rpc

from rpc_backends_processes import WorkerContext


def is_intercepted(me: WorkerContext) -> bool:
    """Return whether an interceptor is in front of this worker's agent."""
    # Its __class__ is that of the agent behind it.
    return type(rpc.api._get_current_rpc_agent()).__name__.startswith("Intercepting")


def is_guarded(me: WorkerContext) -> bool:
    """Return whether a guard unpickles the messages of this worker."""
    internal: Any = rpc.internal
    return internal._unpickler is not pickle.Unpickler
