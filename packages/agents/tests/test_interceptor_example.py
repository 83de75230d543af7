"""The interceptor of the guide, built from source, installed and run."""

from __future__ import annotations

import operator
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, WorkerError, Workers

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "interceptor"
ENV = {"RPC_ALLOWLIST": "_operator.add,torch.ops.aten.add"}


def call(me: WorkerContext, function: Any, *arguments: Any) -> str:
    try:
        return str(rpc.rpc_sync("worker1", function, args=arguments))
    except RuntimeError as error:
        return str(error)


def metrics(me: WorkerContext) -> dict[str, str]:
    values: dict[str, str] = rpc.api._get_current_rpc_agent().get_metrics()
    return values


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install the example; return the folder."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", str(folder / "installed"), str(source)], check=True)
    return folder / "installed"


def test_the_example_refuses_functions_not_listed(
    sockets_package: Path, example: Path, tmp_path: Path
) -> None:
    with Workers(2, env=ENV, seconds=120) as workers:
        workers.run(steps.put_on_path, example)
        workers.run(steps.put_on_path, sockets_package)
        workers.run(steps.join, f"file://{tmp_path}/store", backend="SOCKETS")
        caller, callee = workers
        assert caller.call(call, operator.add, 1, 2) == "3"
        assert "2." in caller.call(call, torch.add, torch.ones(1), 1)
        refused = "worker 'worker1' does not run '_operator.mul' for 'worker0'"
        assert refused in caller.call(call, operator.mul, 2, 3)
        assert callee.call(metrics)["allowlist.refused"] == "1"
        assert caller.call(metrics)["allowlist.refused"] == "0"
        workers.run(steps.leave)
        assert [worker.end() for worker in workers] == [0, 0]


def test_the_example_is_refused_on_tensorpipe(example: Path, tmp_path: Path) -> None:
    """TENSORPIPE does not show calls that arrive, so the example would let every call through."""
    with Workers(1, env=ENV) as workers:
        workers.run(steps.put_on_path, example)
        with pytest.raises(WorkerError, match="'allowlist' decides calls that arrive"):
            workers.run(steps.join, f"file://{tmp_path}/store")
