"""Workers with conflicting settings: `init_rpc` raises in all of them and names the conflict."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backends_agents.engine import secret
from support import steps
from support.workers import Failure, WorkerContext, Workers
from support.zeromq import join

pytestmark = pytest.mark.slow

PREFIX = "RPC_BACKENDS_ZEROMQ_"


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(2) as two:
        yield two


def join_with(me: WorkerContext, url: str, *environs: dict[str, str]) -> None:
    """Join with this worker's own variables."""
    os.environ.update({f"{PREFIX}{name}": value for name, value in environs[me.index].items()})
    join(me, url)


def errors(workers: Workers, tmp_path: Path, *environs: dict[str, str]) -> list[Failure]:
    """Start a group in which each worker has its own variables; return the error of each."""
    return workers.errors(join_with, f"file://{tmp_path}/store", *environs)


def test_workers_with_the_same_secret_form_a_group(
    workers: Workers, tmp_path: Path, text: str, secret_file: Path
) -> None:
    environs = {"SECRET": text}, {"SECRET_FILE": str(secret_file)}

    workers.run(join_with, f"file://{tmp_path}/store", *environs)

    assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
    workers.run(steps.leave)


def test_a_secret_on_one_side_is_an_error(workers: Workers, tmp_path: Path, text: str) -> None:
    for failure in errors(workers, tmp_path, {"SECRET": text}, {}):
        assert failure.kinds[0] in ("PublicationError", "GroupError")
        assert "Give all workers the same secret" in failure.text
        assert text not in failure.text


def test_different_secrets_are_an_error(workers: Workers, tmp_path: Path) -> None:
    for failure in errors(workers, tmp_path, *({"SECRET": secret.generate()} for _ in range(2))):
        assert failure.kinds[0] in ("PublicationError", "GroupError")
        assert "has a different secret" in failure.text


def test_encryption_on_one_side_is_an_error(workers: Workers, tmp_path: Path) -> None:
    remedy = f"Set encryption, or {PREFIX}ENCRYPTION, alike for all workers"
    for failure in errors(workers, tmp_path, {}, {"ENCRYPTION": "0"}):
        assert failure.kinds[0] in ("PublicationError", "GroupError")
        assert remedy in failure.text


@pytest.mark.parametrize("name", ["SECRET", "PORTS"])
def test_every_worker_names_the_invalid_setting_of_one(
    workers: Workers, tmp_path: Path, name: str
) -> None:
    for failure in errors(workers, tmp_path, {}, {name: "nonsense"}):
        assert f"worker 'worker1' cannot start: {PREFIX}{name}" in failure.text
