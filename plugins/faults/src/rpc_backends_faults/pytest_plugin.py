"""The fixture for tests of programs that use RPC. Pytest loads this; it imports nothing until asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from rpc_backends_faults.testing import Runner

_RUNNER: pytest.StashKey[Runner] = pytest.StashKey()


@pytest.fixture
def rpc_faults(tmp_path: Path, request: pytest.FixtureRequest) -> Runner:
    """Run a function on workers that meet faults; give what became of it on each.

    ``outcomes = rpc_faults(train, workers=3, rules=[{"what": "duplicate", "function": "*.update"}])``

    A test that fails shows the seed, the rules, the faults and the end of each worker.
    """
    from rpc_backends_faults.testing import Runner

    runner = request.node.stash[_RUNNER] = Runner(tmp_path / "rpc_faults")
    return runner


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a test that fails show its runs with faults."""
    report = yield
    runner = item.stash.get(_RUNNER, None)
    if report.when == "call" and report.failed and runner is not None:
        for number, run in enumerate(runner.runs, 1):
            title = f"rpc_faults, run {number} of {len(runner.runs)}"
            report.sections.append((title, run.describe(item.nodeid)))
    return report
