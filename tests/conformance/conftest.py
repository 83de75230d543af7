"""Broken backends as an installed package, and running the suite on one as an author does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.environments import clean_environ
from support.packages import write_package

_PACKAGE = Path(__file__).parent / "rpc_broken_backends"
Run = Callable[..., dict[str, Any]]


def pytest_configure() -> None:
    """Make the broken backends importable, for their list."""
    if str(_PACKAGE.parent) not in sys.path:
        sys.path.append(str(_PACKAGE.parent))


@pytest.fixture(scope="session")
def broken_backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the package of the broken backends, as a wheel."""
    from rpc_broken_backends import all_broken

    modules = {f"{_PACKAGE.name}/{path.name}": path.read_text() for path in _PACKAGE.glob("*.py")}
    entry_points = {name: f"{_PACKAGE.name}:{name}" for name in all_broken()}
    return write_package(
        tmp_path_factory.mktemp("broken"),
        "rpc-broken-backends",
        modules=modules,
        entry_points={"rpc.backends": entry_points},
    )


@pytest.fixture
def run_suite(broken_backends: Path, tmp_path: Path) -> Run:
    """Run the conformance suite in a process of its own and return the report."""

    def run(backend: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        report = tmp_path / f"{backend}.json"
        command = [sys.executable, "-m", "pytest", "--pyargs", "rpc_backends_core.testing"]
        # Most of the time a test waits, a broken backend's all the more.
        command += ["-q", "-p", "no:cacheprovider", "-n", "3"]
        command += ["--rpc-backend", backend, *arguments]
        done = subprocess.run(
            [*command, "--rpc-report", str(report)],
            cwd=tmp_path,
            env=clean_environ({"PYTHONPATH": str(broken_backends), **(env or {})}),
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise AssertionError(f"no report of {backend}\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = json.loads(report.read_text())
        found["status"], found["output"] = done.returncode, done.stdout + done.stderr
        return found

    return run
