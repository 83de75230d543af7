"""Fixtures: the example backend on plain sockets, installed; a process for agents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests are imported by their paths

from support.packages import write_package
from support.workers import Worker, Workers

EXAMPLE = Path(__file__).parents[3] / "examples" / "sockets_backend" / "sockets_backend.py"


@pytest.fixture(scope="session")
def sockets_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the backend SOCKETS of `examples/` into a folder."""
    return write_package(
        tmp_path_factory.mktemp("sockets"),
        "rpc-backend-sockets",
        modules={"sockets_backend.py": EXAMPLE.read_text()},
        entry_points={"rpc.backends": {"SOCKETS": "sockets_backend:BACKEND"}},
    )


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Start the process for this module's agents; see :func:`agents_kit.in_worker`."""
    with Workers(1, seconds=300) as workers:
        yield workers[0]
