"""The pytest fixture ``rpc_faults``. Pytest always loads this module, so it imports the rest lazily."""

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
    """Run a function on several workers with faults; returns one outcome per worker.

    ``outcomes = rpc_faults(train, workers=3, rules=[{"what": "duplicate", "function": "*.update"}])``

    If the test fails, its report shows the seed, the rules, the faults and how each worker ended.
    """
    from rpc_backends_faults.testing import Runner

    runner = request.node.stash[_RUNNER] = Runner(tmp_path / "rpc_faults")
    return runner


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the runs with faults to the report of a failed test."""
    report = yield
    runner = item.stash.get(_RUNNER, None)
    if report.when == "call" and report.failed and runner is not None:
        for number, run in enumerate(runner.runs, 1):
            title = f"rpc_faults, run {number} of {len(runner.runs)}"
            report.sections.append((title, run.describe(item.nodeid)))
    return report
