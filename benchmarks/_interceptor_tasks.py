"""Tasks that run in the workers of `interceptors.py`."""

from __future__ import annotations

from torch.distributed import rpc

from rpc_backends_cli.processes import WorkerContext


def is_intercepted(me: WorkerContext) -> bool:
    """Return whether an interceptor is in front of this worker's agent."""
    metrics = rpc.api._get_current_rpc_agent().get_metrics()
    return "measured.refused" in metrics or "recorder.calls" in metrics
