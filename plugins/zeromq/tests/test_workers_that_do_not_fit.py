"""Workers with conflicting settings: `init_rpc` raises in all of them and names the conflict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq import secret

pytestmark = pytest.mark.slow

P = "RPC_BACKENDS_ZEROMQ_"

WORKER = """
import json, sys
import torch
from torch.distributed import rpc

rank, url = int(sys.argv[1]), sys.argv[2]
member = rpc.BackendType.ZEROMQ
options = rpc.backend_registry.construct_rpc_backend_options(member, init_method=url)
try:
    rpc.init_rpc(
        f"w{rank}", backend=member, rank=rank, world_size=2, rpc_backend_options=options
    )
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    print(json.dumps(rpc.rpc_sync(f"w{1 - rank}", torch.add, (torch.ones(1), 1)).tolist()))
    rpc.shutdown()
"""


def start(tmp_path: Path, *environs: dict[str, str]) -> list[Any]:
    """Start a worker in each environment, and return the output of each."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), f"file://{tmp_path}/store"],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, environ in enumerate(environs)
    ]
    said = []
    for worker in workers:
        try:
            output, errors = worker.communicate(timeout=120)
        finally:
            worker.kill()
        assert worker.returncode == 0, errors
        said.append(json.loads(output.splitlines()[-1]))
    return said


def test_with_one_secret_they_are_a_group(tmp_path: Path, text: str, secret_file: Path) -> None:
    assert start(
        tmp_path, {f"{P}SECRET": text}, {f"{P}SECRET_FILE": str(secret_file)}
    ) == [[2.0], [2.0]]  # fmt: skip


def test_a_secret_on_one_side(tmp_path: Path, text: str) -> None:
    for kind, why in start(tmp_path, {f"{P}SECRET": text}, {}):
        assert kind in ("PublicationError", "GroupError")
        assert "Give all workers the same secret" in why
        assert text not in why


def test_different_secrets(tmp_path: Path) -> None:
    for kind, why in start(tmp_path, *({f"{P}SECRET": secret.generate()} for _ in range(2))):
        assert kind in ("PublicationError", "GroupError")
        assert "has a different secret" in why


def test_encryption_on_one_side(tmp_path: Path) -> None:
    for kind, why in start(tmp_path, {}, {f"{P}ENCRYPTION": "0"}):
        assert kind in ("PublicationError", "GroupError")
        assert "Set encryption, or RPC_BACKENDS_ZEROMQ_ENCRYPTION, alike for all workers" in why


@pytest.mark.parametrize("name", ["SECRET", "PORTS"])
def test_a_setting_of_one_that_cannot_be(tmp_path: Path, name: str) -> None:
    for _, why in start(tmp_path, {}, {f"{P}{name}": "nonsense"}):
        assert f"worker 'w1' cannot start: {P}{name}" in why
