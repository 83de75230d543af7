"""The guide's backend, a Python transport on the C++ agent, fulfils the whole contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environments import clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.whole_suite]


def report(sockets_package: Path, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the suite on the backend; all tests must pass. Return the report."""
    command = [sys.executable, "-m", "rpc_backends_cli", "conformance", "SOCKETS", "--json"]
    done = subprocess.run(
        [*command, *arguments, "--jobs", "3", "--timeout-factor", "4"],  # for a busy machine
        cwd=tmp_path,
        env=clean_environ({"PYTHONPATH": str(sockets_package)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr[-5000:]
    written: dict[str, Any] = json.loads(done.stdout)
    failed = [result for result in written["results"] if result["outcome"] == "failed"]
    assert not failed, json.dumps(failed, indent=1)
    assert done.returncode == 0, done.stderr[-5000:]
    return written


def test_a_python_transport_passes_the_most_demanding_chapters(
    sockets_package: Path, tmp_path: Path
) -> None:
    chapters = ("transport", "life")  # the same agent runs the others in the suites of the engines
    chosen = [word for chapter in chapters for word in ("--chapter", chapter)]
    results = report(sockets_package, tmp_path, *chosen)
    assert {result["chapter"] for result in results["results"]} == set(chapters)


@pytest.mark.thorough
def test_a_python_transport_conforms(sockets_package: Path, tmp_path: Path) -> None:
    results = report(sockets_package, tmp_path)
    assert results["verdict"] == "conforms"
    assert {results["capabilities"][name] for name in results["declared"]} == {"kept"}
