"""Where the workers of these tests meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.steps import Meeting, meeting


@pytest.fixture(params=["file", "tcp"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    """Meet over a file, and over TCP with rank 0 as host."""
    with meeting(request.param, tmp_path) as place:
        yield place


@pytest.fixture(params=["file", "tcp", "agent"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    """Meet in all ways: also over TCP with a host that is no worker, as torchrun has it."""
    with meeting(request.param, tmp_path) as place:
        yield place


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Meet over a file, for tests in which it does not matter."""
    return f"file://{tmp_path}/store"
