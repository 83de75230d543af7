"""What is made once for all processes that a run of the tests is divided into (pytest-xdist)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Return the folder ``name`` of this run, which ``make`` has filled in the first process to ask.

    The others wait for it. Where ``make`` fails, the next to ask tries again.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    folder = common / "once" / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f"{name}.made")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        if not made.exists():
            make(folder)
            made.touch()
    return folder
