"""The interceptor of the guide, built from source, installed and run."""

from __future__ import annotations

import operator
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

EXAMPLE = Path(__file__).parents[3] / "examples" / "interceptor"


def call(me: WorkerContext, function: Any, *arguments: Any) -> str:
    try:
        return str(rpc.rpc_sync("worker1", function, args=arguments))
    except RuntimeError as error:
        return str(error)


def metrics(me: WorkerContext) -> dict[str, str]:
    found: dict[str, str] = rpc.api._get_current_rpc_agent().get_metrics()
    return found


def test_the_example_refuses_functions_not_listed(sockets_package: Path, tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    target = tmp_path / "installed"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    env = {"RPC_ALLOWLIST": "_operator.add,torch.ops.aten.add"}
    with Workers(2, env=env, seconds=120) as workers:
        workers.run(steps.put_on_path, target)
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
