"""The backend on the how-to page conforms to what it declares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environments import clean_environ
from support.packages import write_package

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "small_backend"


def report(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the conformance suite on the backend; no test may fail. Return the report."""
    wheel = write_package(
        tmp_path,
        "rpc-backend-small",
        modules={"small_backend.py": (FOLDER / "small_backend.py").read_text()},
        entry_points={"rpc.backends": {"SMALL": "small_backend:BACKEND"}},
    )
    command = [sys.executable, "-m", "rpc_backends_cli", "conformance", "SMALL", "--json"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=tmp_path,
        env=clean_environ({"PYTHONPATH": str(wheel)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    results: dict[str, Any] = json.loads(done.stdout)
    assert "failed" not in {result["outcome"] for result in results["results"]}
    return results


def test_the_small_backend_passes_a_part_of_the_first_chapter(tmp_path: Path) -> None:
    results = report(tmp_path, "--chapter", "calls", "-k", "test_builtin or exception")
    assert results["verdict"] == "partial"
    assert {result["chapter"] for result in results["results"]} == {"calls"}


@pytest.mark.thorough
def test_the_small_backend_conforms(tmp_path: Path) -> None:
    results = report(tmp_path, "--jobs", "2")
    assert results["verdict"] == "conforms"
    assert {results["capabilities"][name] for name in results["declared"]} == {"kept"}
