"""Fixtures: the store where the workers of these tests meet, and a clean environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RPC_BACKENDS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a file store."""
    return f"file://{tmp_path}/store"
