"""One of the two processes that call each other over a backend."""

from __future__ import annotations

import os
import statistics
import time
import warnings
from typing import Any

from rpc_backends_cli.child import Say


def main(spec: dict[str, Any], say: Say) -> None:
    """Join a group of two; rank 0 calls rank 1.

    :param spec: ``backend``, ``rank``, ``store`` (a path that both have), ``calls``, ``timeout``
        (seconds).
    """
    say(stage="importing torch")
    from torch.distributed import rpc

    import rpc_backends_core
    from rpc_backends_cli.options import options_of
    from rpc_backends_core.spi.inspection import HookWarning, default_registry, settings

    warnings.simplefilter("ignore", HookWarning)  # doctor looks at hook packages by themselves
    # It may have been switched off, or another backend put in its place, for programs; what is tried
    # here is the backend.
    rpc_backends_core.install()
    os.environ.pop(settings.OVERRIDE, None)
    say(stage="constructing its options")
    known = options_of(default_registry().backend(spec["backend"]))
    required = [o.name for o in known if o.default is None and o.declared_by == "handler"]
    if required:
        say(required=required)
        return
    options = rpc_backends_core.construct_rpc_backend_options(
        spec["backend"], rpc_timeout=spec["timeout"], init_method=f"file://{spec['store']}"
    )
    say(stage="starting")
    started = time.perf_counter()
    rpc.init_rpc(
        f"doctor{spec['rank']}",
        backend=spec["backend"],
        rank=spec["rank"],
        world_size=2,
        rpc_backend_options=options,
    )
    say(start_seconds=time.perf_counter() - started)
    if spec["rank"] == 0:
        say(stage="calling")
        _call(rpc, spec["calls"], say)
    say(stage="stopping")
    started = time.perf_counter()
    rpc.shutdown()
    say(stop_seconds=time.perf_counter() - started)
    say(stage="ending the process")


def _call(rpc: Any, calls: int, say: Say) -> None:
    times = []
    for _ in range(calls + 1):
        started = time.perf_counter()
        answered_by = rpc.rpc_sync("doctor1", os.getpid)
        times.append(time.perf_counter() - started)
        if answered_by == os.getpid():
            raise RuntimeError("a call to the other worker was executed by the caller itself")
    first, *later = times
    say(first_call_seconds=first, median_call_seconds=statistics.median(later), calls=len(later))
