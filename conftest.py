"""What all tests of this repository share, whichever distribution they are of."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Take back SIGINT, which a shell makes its background jobs ignore; tests send it to children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: where two are run at once, none shall be last and alone."""
    slow: dict[Path, int] = {}
    sizes: dict[Path, int] = {}
    for item in items:
        sizes[item.path] = sizes.get(item.path, 0) + 1
        marked = any(item.get_closest_marker(name) for name in ("slow", "thorough"))
        slow[item.path] = slow.get(item.path, 0) + marked
    # Those that are slow throughout before those with a slow test or two.
    items.sort(key=lambda item: -slow[item.path] / sizes[item.path])
