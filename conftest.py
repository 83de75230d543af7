"""Set-up shared by all tests of this repository."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Restore SIGINT, which a shell disables for its background jobs; tests send it to children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no slow file runs last and alone."""
    slow: dict[Path, int] = {}
    sizes: dict[Path, int] = {}
    for item in items:
        sizes[item.path] = sizes.get(item.path, 0) + 1
        marked = any(item.get_closest_marker(name) for name in ("slow", "thorough"))
        slow[item.path] = slow.get(item.path, 0) + marked
    # Files with only slow tests come before files with a few.
    items.sort(key=lambda item: -slow[item.path] / sizes[item.path])
