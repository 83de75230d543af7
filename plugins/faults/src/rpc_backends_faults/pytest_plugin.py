"""The fixture for tests of programs that use RPC. Pytest loads this; it imports nothing until asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from rpc_backends_faults.testing import Runner


@pytest.fixture
def rpc_faults(tmp_path: Path) -> Runner:
    """Run a function on workers that meet faults; give what became of it on each.

    ``outcomes = rpc_faults(train, workers=3, rules=[{"what": "duplicate", "function": "*.update"}])``
    """
    from rpc_backends_faults.testing import Runner

    return Runner(tmp_path / "rpc_faults")
