"""The backend of the guide, a transport in Python on the agent in C++, keeps the whole contract."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.whole_suite]


def test_a_transport_in_python_makes_a_backend_that_conforms(
    sockets_package: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "rpc_backends_cli", "conformance", "SOCKETS", "--json"]
    done = subprocess.run(
        [*command, "--jobs", "3"],
        cwd=tmp_path,
        env=clean_environ({"PYTHONPATH": str(sockets_package)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    report = json.loads(done.stdout)
    failed = [result["id"] for result in report["results"] if result["outcome"] == "failed"]
    assert not failed
    assert {report["capabilities"][name] for name in report["declared"]} == {"kept"}
