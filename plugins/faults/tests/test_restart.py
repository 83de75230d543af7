"""A worker that is started again after a crash by a rule."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.command import run_python

EXAMPLE = Path(__file__).parents[3] / "examples" / "explore" / "train.py"
CRASH = """[[rule]]
name = "crash"
what = "crash"
sender = "trainer"
function = "__main__.update"
after = 5
"""


def train(tmp_path: Path, rules: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "rules.toml").write_text(rules)
    variables = {"RPC_BACKENDS_FAULTS": "rules.toml", "RPC_BACKENDS_FAULTS_LOG": "logs"}
    return run_python(EXAMPLE, "--fixed", cwd=tmp_path, env={**os.environ, **variables})


def crashes(tmp_path: Path) -> int:
    lines = [line for log in tmp_path.glob("logs/*") for line in log.read_text().splitlines()]
    return sum(bool(json.loads(line).get("faults")) for line in lines)


@pytest.mark.slow
def test_a_crash_with_a_budget_counts_over_restarts(tmp_path: Path) -> None:
    done = train(tmp_path, CRASH + "budget = 1\n")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("parameters ")
    assert crashes(tmp_path) == 1


@pytest.mark.slow
def test_a_crash_without_a_budget_happens_in_each_process(tmp_path: Path) -> None:
    # The trainer makes progress from checkpoint to checkpoint until fewer than six updates are left.
    assert train(tmp_path, CRASH).returncode == 0
    assert crashes(tmp_path) > 1
