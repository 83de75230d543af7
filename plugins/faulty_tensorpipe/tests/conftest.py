"""Where the workers of these tests meet."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Meet over a file."""
    return f"file://{tmp_path}/store"
