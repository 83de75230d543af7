"""Worker processes of the command, started in a clean environment.

See `rpc_backends_cli.processes.workers`.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rpc_backends_cli.processes import (
    Done,
    Failure,
    Step,
    Template,
    Worker,
    WorkerContext,
    WorkerError,
)
from rpc_backends_cli.processes import Workers as _Workers
from support.environments import clean_environ

__all__ = ["Done", "Failure", "Step", "Worker", "WorkerContext", "WorkerError", "Workers"]

ROOT = Path(__file__).parents[2]
PLUGINS = ("rpc_backend_tensorpipe", "rpc_backend_zeromq.handlers")


@functools.cache
def template() -> Template:
    """Return how all tests start workers: forked from one server that has imported the plugins.

    It does not import FAULTY_TENSORPIPE, whose import makes torch register a backend.
    """
    return Template(
        preload=[module for module in PLUGINS if find_spec(module.partition(".")[0])],
        variables=clean_environ(),
        path=[str(ROOT / "tests")],
        # Workers import test modules under the names that pytest gives them, from this repository only.
        packages={folder: str(ROOT / folder) for folder in ("tests", "plugins")},
    )


class Workers(_Workers):
    """Workers in a clean environment. See `rpc_backends_cli.processes.Workers`."""

    def __init__(self, size: int, **settings: Any) -> None:
        super().__init__(size, **{"template": template(), **settings})
