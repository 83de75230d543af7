"""Run torch's suites with pytest: the import path, the option for stock torch, the final summary."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# The tests' processes import this package by the name that pytest gives it.
_IMPORT_ROOT = str(Path(__file__).parents[__name__.count(".")])
if _IMPORT_ROOT not in sys.path:
    sys.path.insert(0, _IMPORT_ROOT)

#: ``make test`` runs each eighth of the tests on TENSORPIPE.
_TENSORPIPE, _EVERY = "test_tensorpipe.py", 8
_STOCK = "--torch-suites-stock"
_BACKEND = "torch_suites_backend"
_ADAPTED = "torch_suites_adapted"
_SERVED = "torch_suites_served"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for stock torch; pytest knows it if this folder is on its command line."""
    parser.addoption(
        _STOCK,
        action="store_true",
        help="run torch's RPC suites against stock torch, without the installed backends",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Switch the bridge off before torch is imported, here and in the tests' processes."""
    if not _is_stock(config):
        return
    if "torch" in sys.modules:
        raise pytest.UsageError(
            f"{_STOCK}: torch is imported already; run tests/torch_suites alone"
        )
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the slow import of these suites in runs that exclude them by marker."""
    left_out = "not torch_suites" in config.getoption("markexpr", default="")
    return True if left_out and collection_path.parent == Path(__file__).parent else None


@pytest.fixture(scope="session")
def torch_suites_stock(pytestconfig: pytest.Config) -> bool:
    """Return whether this run tests stock torch."""
    return _is_stock(pytestconfig)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only ``make test-all`` and CI run, and record the backend of each of torch's tests."""
    of_tensorpipe = [item for item in items if item.path == Path(__file__).with_name(_TENSORPIPE)]
    for number, item in enumerate(of_tensorpipe):
        if number % _EVERY:
            item.add_marker(pytest.mark.thorough)
    _record_backends(items)


def _record_backends(items: list[pytest.Item]) -> None:
    """Record the backend of each of torch's tests for the summary, as a property, which reports carry."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    if not ours:
        return
    from rpc_backends_testing.torch_tier import generation

    from . import suites

    backends = {f"test_{which.backend.lower()}.py": which.backend for which in suites.ALL}
    for item in ours:
        if item.path.name not in backends:
            continue
        item.user_properties.append((_BACKEND, backends[item.path.name]))
        if generation.is_adapted(item.name):
            item.user_properties.append((_ADAPTED, item.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results of torch's own tests, separately from all other tests."""
    results = _Results()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport):
                results.add(report, outcome)
    if not results.outcomes:
        return
    terminalreporter.section("torch's own RPC suites")
    for line in results.lines():
        terminalreporter.write_line(line)


def _is_stock(config: pytest.Config) -> bool:
    return bool(config.getoption(_STOCK, default=False))


class _Results:
    """The outcomes of torch's tests, collected from reports."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.backend_of: dict[str, str] = {}
        self.adapted: dict[str, str] = {}
        self.skips: dict[str, str] = {}
        self.served: dict[str, str] = {}

    def add(self, report: pytest.TestReport, outcome: str) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if _SERVED in properties:
            self.served.update([properties[_SERVED]])
        if _BACKEND not in properties:
            return
        test = report.nodeid
        self.backend_of[test] = properties[_BACKEND]
        # A test can be reported twice: as passed, then as an error in its teardown.
        if self.outcomes.get(test) != "failed":
            self.outcomes[test] = "failed" if outcome == "error" else outcome
        if _ADAPTED in properties:
            self.adapted[test] = properties[_ADAPTED]
        if outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.skips[test] = reason.removeprefix("Skipped: ")

    def lines(self) -> list[str]:
        """Return the lines of the summary."""
        from . import suites

        lines = [f"{'':20}{'passed':>8}{'failed':>8}{'skipped':>9}"]
        for which in suites.ALL:
            lines.append(_row(which.backend, self._count(which.backend)))
        total = self._count(None)
        lines.append(_row("total", total))
        lines += self._served_lines()
        lines += [f"skipped: {test}: {reason}" for test, reason in sorted(self.skips.items())]
        lines += _not_run_lines()
        lines.append(self._verdict(total["passed"]))
        return lines

    def _count(self, backend: str | None) -> Counter[str]:
        return Counter(
            outcome
            for test, outcome in self.outcomes.items()
            if backend in (None, self.backend_of[test])
        )

    def _served_lines(self) -> list[str]:
        from . import suites

        unknown = "unknown (test_completeness.py finds out; it failed or did not run)"
        return [
            f"{which.backend} served by {self.served.get(which.backend, unknown)}"
            for which in suites.ALL
        ]

    def _verdict(self, passed: int) -> str:
        from rpc_backends_testing.torch_tier import generation

        adapted = [
            name for test, name in sorted(self.adapted.items()) if self.outcomes[test] == "passed"
        ]
        if not adapted:
            return f"{passed} passed, as torch wrote them"
        tests_of: dict[str, list[str]] = {}
        for name in sorted({*adapted}):
            tests_of.setdefault(generation.ADAPTED[name], []).append(name)
        reasons = "; ".join(f"{', '.join(tests)}, because {why}" for why, tests in tests_of.items())
        return (
            f"{passed} passed: {passed - len(adapted)} as torch wrote them,"
            f" {len(adapted)} adapted: {reasons}"
        )


def _row(name: str, count: Counter[str]) -> str:
    return f"{name:20}{count['passed']:>8}{count['failed']:>8}{count['skipped']:>9}"


def _not_run_lines() -> list[str]:
    """Return the release of torch, and which tests were not run because there is no GPU."""
    import torch

    from . import suites

    lines = [f"torch {torch.__version__}"]
    if suites.torch_release() not in suites.EXPECTED_TESTS:
        lines[0] += (
            f", whose tests were not counted before (only torch {', '.join(suites.EXPECTED_TESTS)})"
        )
    cuda = sum(which.cuda_tests for which in suites.ALL)
    if not torch.cuda.is_available():
        lines.append(
            f"not run: {cuda} tests of torch's CUDA lists, as there is no CUDA device here"
        )
    return lines
