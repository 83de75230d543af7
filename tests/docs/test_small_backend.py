"""The backend of the document passes what it declares, as its author would see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import clean_environ
from support.packages import write_package

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples" / "small_backend"


def test_the_small_backend_conforms(tmp_path: Path) -> None:
    wheel = write_package(
        tmp_path,
        "rpc-backend-small",
        modules={"small_backend.py": (FOLDER / "small_backend.py").read_text()},
        entry_points={"rpc.backends": {"SMALL": "small_backend:BACKEND"}},
    )
    command = [sys.executable, "-m", "rpc_backends_cli", "conformance", "SMALL", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environ({"PYTHONPATH": str(wheel)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    report = json.loads(done.stdout)
    failed = [result["id"] for result in report["results"] if result["outcome"] == "failed"]
    assert not failed
    declared = report["declared"]
    assert {report["capabilities"][name] for name in declared} == {"kept"}
