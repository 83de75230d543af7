"""Prints the calls between modules of the core during one ``init_rpc``, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType

from torch.distributed import rpc

import rpc_backends_core

CORE = str(Path(rpc_backends_core.__file__).parent)


def trace(backend: str) -> list[tuple[str, str, str]]:
    """Start ``backend``; return each call as (calling module, called module, function)."""
    path: list[tuple[str, str, str]] = []

    def follow(frame: FrameType, event: str, _argument: object) -> None:
        called, caller = frame.f_code.co_filename, frame.f_back
        if event != "call" or not called.startswith(CORE) or frame.f_code.co_name.startswith("<"):
            return
        calling = caller.f_code.co_filename if caller else ""
        if calling != called:
            path.append((_module(calling), _module(called), frame.f_code.co_qualname))

    rpc.BackendType[backend].value  # noqa: B018  # imports it: what follows is every start but the first
    sys.setprofile(follow)
    try:
        rpc.init_rpc(
            "worker",
            backend=backend,
            rank=0,
            world_size=1,
            rpc_backend_options=None,
        )
    finally:
        sys.setprofile(None)
    rpc.shutdown()
    return path


def _module(file: str) -> str:
    return file.removeprefix(CORE + "/").removesuffix(".py") if file.startswith(CORE) else ""


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    print(json.dumps(trace(sys.argv[1])))
