"""Fixtures that run the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import BACKEND, Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Return the command, with an empty folder for more packages on its path."""
    return Command(tmp_path)


@pytest.fixture
def backend_source() -> Callable[[str], str]:
    """Return a function that gives the source of a backend which first runs a statement."""
    return lambda first: BACKEND % first
