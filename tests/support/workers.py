"""Worker processes as the tests of this repository have them: the command's, in a clean environment.

See `rpc_backends_cli.processes.workers`.
"""

from __future__ import annotations

import functools
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


@functools.cache
def template(preload: str = "rpc_backend_tensorpipe") -> Template:
    """Return how the workers of this repository's tests start: with one plugin imported.

    Not the faulty one, whose import makes torch register a backend.
    """
    return Template(
        preload=[preload],
        variables=clean_environ(),
        path=[str(ROOT / "tests")],
        # pytest's names for test modules, from this repository alone
        packages={folder: str(ROOT / folder) for folder in ("tests", "plugins")},
    )


class Workers(_Workers):
    """Workers in a clean environment; see the class of this name in the command."""

    def __init__(self, size: int, **settings: Any) -> None:
        super().__init__(size, **{"template": template(), **settings})
