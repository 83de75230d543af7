"""The example backend on plain sockets, as an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.packages import write_package

EXAMPLE = Path(__file__).parents[2] / "examples" / "sockets_backend" / "sockets_backend.py"


@pytest.fixture(scope="session")
def sockets_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the backend SOCKETS of `examples/` into a folder."""
    return write_package(
        tmp_path_factory.mktemp("sockets"),
        "rpc-backend-sockets",
        modules={"sockets_backend.py": EXAMPLE.read_text()},
        entry_points={"rpc.backends": {"SOCKETS": "sockets_backend:BACKEND"}},
    )
