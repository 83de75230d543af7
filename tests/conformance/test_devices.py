"""The chapter ``devices`` of the conformance suite, on a machine with an accelerator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import late_device
from support.command import run_module
from support.environments import clean_environ
from support.packages import write_package

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
#: A package that makes the accelerator of the tests available in every process that imports torch.
LATE_BACKEND = f"""
import sys

def load():
    sys.path.append({str(TESTS)!r})
    from support import late_device
    late_device.load()
"""


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("ZEROMQ", []),
        pytest.param("UCX", [], marks=pytest.mark.thorough),
        # UCX moves the accelerator's memory itself: it is the host's.
        ("UCX", ["--option", 'device_memory={"late": "host"}']),
    ],
    ids=["ZEROMQ", "UCX", "UCX direct"],
)
def test_a_backend_on_the_agent_keeps_every_promise_about_devices(
    backend: str, options: list[str], tmp_path: Path
) -> None:
    late_device.library()
    package = write_package(
        tmp_path / "late",
        "late-backend",
        modules={"late_backend.py": LATE_BACKEND},
        entry_points={"torch.backends": {"late": "late_backend:load"}},
    )
    done = run_module(
        *("rpc_backends_cli", "conformance", backend, *options, "--chapter", "devices", "--json"),
        env=clean_environ({"PYTHONPATH": str(package)}),
        cwd=tmp_path,
    )
    assert done.status == 0, done.stdout[-5000:] + done.stderr[-5000:]
    outcomes = {result["id"]: result["outcome"] for result in json.loads(done.stdout)["results"]}
    assert "devices.streams_are_synchronised" in outcomes
    assert set(outcomes.values()) == {"passed"}
