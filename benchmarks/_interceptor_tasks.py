"""Tasks that run in the workers of `python_interceptors.py`."""

from __future__ import annotations

from torch.distributed import rpc

from rpc_backends_cli.processes import WorkerContext


def is_intercepted(me: WorkerContext) -> bool:
    """Return whether the measured interceptor wraps this worker's agent."""
    return "measured.refused" in rpc.api._get_current_rpc_agent().get_metrics()
