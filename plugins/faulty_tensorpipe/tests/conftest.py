"""Fixtures: the store where the workers of these tests meet."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a file store."""
    return f"file://{tmp_path}/store"
