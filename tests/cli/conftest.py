"""The command as these tests have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import BACKEND, Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Give the command, with no other packages than are installed here."""
    return Command(tmp_path)


@pytest.fixture
def backend_source() -> Callable[[str], str]:
    """Give the source of a backend that does something first when it is started."""
    return lambda first: BACKEND % first
