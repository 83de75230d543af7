"""Worker processes of the command, started in a clean environment.

See `rpc_backends_processes.workers`.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rpc_backends_processes import (
    Done,
    Failure,
    Step,
    Template,
    Worker,
    WorkerContext,
    WorkerError,
)
from rpc_backends_processes import Workers as _Workers
from support.command import wait_until
from support.environments import clean_environ

__all__ = [
    "Done",
    "Failure",
    "Step",
    "Worker",
    "WorkerContext",
    "WorkerError",
    "Workers",
    "suspend",
    "without_tensorpipe",
    "without_tensorpipe_environ",
]

ROOT = Path(__file__).parents[2]
PLUGINS = ("rpc_backend_tensorpipe", "rpc_backend_zeromq.handlers")


@functools.cache
def template() -> Template:
    """Return how all tests start workers: forked from one server that has imported the plugins.

    It does not import FAULTY_TENSORPIPE, whose import makes torch register a backend.
    """
    return _template(PLUGINS, clean_environ())


@functools.cache
def without_tensorpipe() -> Template:
    """Return how to start workers whose torch looks as if it was built without TensorPipe."""
    return _template(PLUGINS[1:], without_tensorpipe_environ())


def without_tensorpipe_environ() -> dict[str, str]:
    """Return the environment in which torch looks as if it was built without TensorPipe."""
    return clean_environ({"PYTHONPATH": str(ROOT / "tests/support/without_tensorpipe")})


def _template(plugins: Iterable[str], variables: Mapping[str, str]) -> Template:
    return Template(
        preload=["pytest", *(module for module in plugins if find_spec(module.partition(".")[0]))],
        variables=variables,
        path=[str(ROOT / "tests")],
        # Workers import test modules under the names that pytest gives them, from this repository only.
        packages={folder: str(ROOT / folder) for folder in ("tests", "plugins")},
    )


class Workers(_Workers):
    """Workers in a clean environment. See `rpc_backends_processes.Workers`."""

    def __init__(self, size: int, **settings: Any) -> None:
        super().__init__(size, **{"template": template(), **settings})


def suspend(pid: int) -> None:
    """Send SIGSTOP to a process, and wait until it stands still: on busy cores that takes some 10 ms."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _is_suspended(pid))


def _is_suspended(pid: int) -> bool:
    try:
        states = [
            # after the name, which may have spaces and parentheses
            file.read_text().rpartition(")")[2].split()[0]
            for file in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return set(states) == {"T"}
