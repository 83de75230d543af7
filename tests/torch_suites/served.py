"""Finds out which package provides a backend, in a process started like those of torch's tests."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tempfile
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backends_testing.torch_tier import processes

_TIMEOUT_S = 120.0

# Torch's own FAULTY_TENSORPIPE requires these options.
_REQUIRED: dict[str, dict[str, Any]] = {
    "FAULTY_TENSORPIPE": {
        "num_worker_threads": 4,
        "messages_to_fail": [],
        "messages_to_delay": {},
        "num_fail_sends": 0,
    }
}


@dataclass
class Served:
    """What one process found out about a backend.

    :param one_enum: whether `torch.distributed.rpc` and its registry share one `BackendType`.
    :param handlers: the modules of the two handlers in `BackendType[...].value`.
    :param called: the Python functions that `init_rpc` called, as `module:name`.
    :param distribution: name and version of the distribution that has the handlers.
    """

    one_enum: bool
    handlers: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    distribution: str = ""


def ask(backend: str) -> Served:
    """Start one worker over `backend` in its own process; return what it found out."""
    receiving, sending = processes.context().Pipe(duplex=False)
    process = processes.context().Process(  # type: ignore[attr-defined]
        target=_answer, args=(backend, sending)
    )
    process.start()
    sending.close()
    try:
        if not receiving.poll(_TIMEOUT_S):
            raise TimeoutError(f"a worker over {backend!r} gave no answer in {_TIMEOUT_S:.0f} s")
        served: Served = receiving.recv()
    except EOFError as error:
        raise RuntimeError(
            f"a worker over {backend!r} ended before it answered; its own error is on stderr"
        ) from error
    else:
        return served
    finally:
        process.terminate()
        process.join()
        receiving.close()


def _answer(backend: str, sending: Connection) -> None:
    if backend == "FAULTY_TENSORPIPE":
        # Torch registers the backend in this module, which only its fixture for this backend imports.
        importlib.import_module("torch.distributed.rpc._testing")
    # Use the registry's enum, as torch's fixtures do: stock torch does not update `rpc.BackendType`.
    registry: Any = rpc.backend_registry
    member = registry.BackendType[backend]
    served = Served(
        one_enum=rpc.BackendType is registry.BackendType,
        handlers=[handler.__module__ for handler in member.value],
    )
    served.distribution = _distribution(backend, served.handlers)
    called: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.add(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}")

    with tempfile.TemporaryDirectory() as folder:
        options = registry.construct_rpc_backend_options(
            member, init_method=f"file://{folder}/store", **_REQUIRED.get(backend, {})
        )
        sys.setprofile(record)
        try:
            rpc.init_rpc("worker0", member, rank=0, world_size=1, rpc_backend_options=options)
        finally:
            sys.setprofile(None)
        rpc.shutdown()
    served.called = sorted(called)
    sending.send(served)


def _distribution(backend: str, handlers: list[str]) -> str:
    for entry_point in importlib.metadata.entry_points(group="rpc.backends", name=backend):
        package = entry_point.module.partition(".")[0]
        if entry_point.dist and all(name.partition(".")[0] == package for name in handlers):
            return f"{entry_point.dist.name} {entry_point.dist.version}"
    if all(name.partition(".")[0] == "torch" for name in handlers):
        return f"torch {torch.__version__}"
    return "no installed distribution"
