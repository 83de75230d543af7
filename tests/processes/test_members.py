"""The members of a dynamic group: one owner of each name, and dead members leave the list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import steps
from support.workers import WorkerError, Workers

pytestmark = pytest.mark.slow

BACKENDS = ["ZEROMQ", "UCX", "TENSORPIPE"]
ROUNDS = 5


def outcome(step) -> str:
    try:
        step.result()
    except WorkerError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_of_four_joins_under_one_name_succeeds(tmp_path: Path, backend: str) -> None:
    with Workers(4, seconds=120) as workers:
        counts = []
        for turn in range(ROUNDS):
            url = f"file://{tmp_path}/{turn}"
            joins = [
                worker.start(steps.join_dynamic, url, name="same", backend=backend)
                for worker in workers
            ]
            errors = [outcome(step) for step in joins]
            counts.append(errors.count(""))
            assert all(re.search("name same is not unique|^$", error) for error in errors), errors
            for worker, error in zip(workers, errors, strict=True):
                if not error:
                    worker.call(steps.leave)
        assert counts == [1] * ROUNDS
