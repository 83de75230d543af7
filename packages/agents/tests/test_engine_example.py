"""The example of an engine on the kit, built from source, installed and run."""

from __future__ import annotations

import operator
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_agents.engine import secret
from support import steps
from support.workers import WorkerError, Workers

EXAMPLE = Path(__file__).parents[3] / "examples" / "guarded_tcp"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install the example; return the folder."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--target", folder / "installed", source], check=True)
    return folder / "installed"


@pytest.mark.slow
def test_workers_with_the_secret_call_each_other(example: Path, tmp_path: Path) -> None:
    env = {"RPC_BACKENDS_GUARDED_TCP_SECRET": secret.generate()}
    with Workers(2, env=env, seconds=120) as workers:
        workers.run(steps.put_on_path, example)
        workers.run(steps.join, f"file://{tmp_path}/store", backend="GUARDED_TCP")
        assert workers[0].call(steps.call, "worker1", operator.add, 1, 2) == 3
        workers.run(steps.leave)


@pytest.mark.slow
def test_a_worker_with_another_secret_is_refused(example: Path, tmp_path: Path) -> None:
    with Workers(2, seconds=120) as workers:
        workers.run(steps.put_on_path, example)
        with pytest.raises(WorkerError, match="has a different secret"):
            workers.run(
                steps.join,
                f"file://{tmp_path}/store",
                backend="GUARDED_TCP",
                only={rank: {"secret": secret.generate()} for rank in range(2)},
            )


@pytest.mark.thorough
def test_the_engine_conforms(example: Path) -> None:
    command = [sys.executable, "-m", "rpc_backends_cli", "conformance", "GUARDED_TCP"]
    done = subprocess.run(
        [*command, "--jobs", "2", "--timeout-factor", "4"],  # for a busy machine
        env={**os.environ, "PYTHONPATH": str(example)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "GUARDED_TCP conforms" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
