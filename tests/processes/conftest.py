"""Fixtures that say where the workers of these tests meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.steps import Meeting, meeting


@pytest.fixture(params=["file", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    """Return a meeting place over a file, and one over a TCP store that rank 0 hosts."""
    with meeting(request.param, tmp_path) as place:
        yield place


@pytest.fixture(params=["file", "tcp", "agent"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    """Return the places of `where`, and one over a TCP store that no worker hosts, as under torchrun."""
    with meeting(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a file store, for tests where the kind of store does not matter."""
    return f"file://{tmp_path}/store"
