"""Worker processes as the tests of this repository have them: the command's, in a clean environment.

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
    Me,
    Step,
    Template,
    Worker,
    WorkerError,
)
from rpc_backends_cli.processes import Workers as _Workers
from support.environments import clean_environ

__all__ = ["Done", "Failure", "Me", "Step", "Worker", "WorkerError", "Workers"]

ROOT = Path(__file__).parents[2]
PLUGINS = ("rpc_backend_tensorpipe", "rpc_backend_zeromq.handlers")


@functools.cache
def template() -> Template:
    """Return how the workers of all tests start: forked from one server that has the plugins imported.

    Not FAULTY_TENSORPIPE, whose import makes torch register a backend.
    """
    return Template(
        preload=[module for module in PLUGINS if find_spec(module.partition(".")[0])],
        variables=clean_environ(),
        path=[str(ROOT / "tests")],
        # pytest's names for test modules, from this repository alone
        packages={folder: str(ROOT / folder) for folder in ("tests", "plugins")},
    )


class Workers(_Workers):
    """Workers in a clean environment; see the class of this name in the command."""

    def __init__(self, size: int, **settings: Any) -> None:
        super().__init__(size, **{"template": template(), **settings})
