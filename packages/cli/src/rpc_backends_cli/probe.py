"""A real call between two processes over a backend, with a time limit."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from rpc_backends_cli import children
from rpc_backends_cli.report import Finding, seconds

CALLS = 100
_TIMES = ("start_seconds", "first_call_seconds", "median_call_seconds", "stop_seconds")


def check(backend: str, limit: float) -> Finding:
    """Start two workers on ``backend``, call one from the other, and say how long it took.

    :param limit: seconds for all of it, importing torch included.
    """
    with tempfile.TemporaryDirectory(prefix="rpc-backends-") as folder:
        common = {
            "backend": backend,
            "store": str(Path(folder, "store")),
            "calls": CALLS,
            "timeout": limit,
        }
        specs = [{**common, "rank": rank} for rank in range(2)]
        outcomes = children.run(f"{__package__}.probe_worker", specs, limit)
    failed = _first_failed(outcomes)
    if failed is None:
        required = outcomes[0].fact("required")
        if required:
            text = f"not tried: without a default there is {', '.join(required)}"
            return Finding("note", backend, text, {"required": required})
        return _well(backend, outcomes)
    stage = failed.fact("stage") or "beginning"
    data: dict[str, Any] = {
        "error": failed.error,
        "stage": stage,
        "traceback": failed.fact("traceback"),
        "log": failed.log,
        "timed_out": failed.timed_out,
        "limit_seconds": limit,
    }
    text = f"failed while {stage}: {failed.error}"
    if failed.timed_out:
        text += f"\nThe limit was {limit:g} s; --timeout sets another."
    return Finding("problem", backend, text, data)


def _well(backend: str, outcomes: list[children.Outcome]) -> Finding:
    data = {name: outcomes[0].fact(name) for name in _TIMES}
    # The one that came first has waited for the other to import torch.
    data["start_seconds"] = min(outcome.fact("start_seconds") for outcome in outcomes)
    data["calls"] = outcomes[0].fact("calls")
    text = (
        f"{seconds(data['median_call_seconds'])} a call, "
        f"first {seconds(data['first_call_seconds'])}, start {seconds(data['start_seconds'])}"
    )
    return Finding("ok", backend, text, data)


def _first_failed(outcomes: list[children.Outcome]) -> children.Outcome | None:
    """Return the worker that explains the failure: one that says why, else one that was killed."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    # Who failed first did so of itself; the other one may have failed because of that.
    failed.sort(key=lambda outcome: (outcome.fact("when") or math.inf, not outcome.timed_out))
    return failed[0] if failed else None
