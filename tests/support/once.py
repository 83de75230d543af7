"""Things made once for all processes of one test run (pytest-xdist)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Return the folder ``name`` of this run. The first process to ask fills it with ``make``.

    The other processes wait until it is filled. If ``make`` fails, the next process to ask tries again.
    """
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    folder = common / "once" / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f"{name}.made")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        if not made.exists():
            make(folder)
            made.touch()
    return folder
