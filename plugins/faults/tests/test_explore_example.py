"""The commands in the README of examples/explore do what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.environments import clean_environ

EXAMPLES = Path(__file__).parents[3] / "examples"
README = (EXAMPLES / "explore" / "README.md").read_text()
COMMANDS = re.findall(r"^\$ (.*)$", README, re.MULTILINE)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = clean_environ()
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def failures(folder: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((folder / "explore.json").read_text())["failures"]
    return listed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the examples in which commands can be run."""
    for name in ("explore", "parameter_server"):
        ignored = shutil.ignore_patterns("__pycache__", "explore", "explore-fixed")
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=ignored)
    return tmp_path / "explore"


def test_the_readme_has_the_commands_that_are_tested() -> None:
    assert [command.split()[:3] for command in COMMANDS] == [
        ["python", "train.py"],
        ["rpc-backends", "faults", "explore"],
        ["rpc-backends", "faults", "explore"],
        ["cd", "../parameter_server"],
        ["rpc-backends", "faults", "explore"],
    ]


@pytest.mark.slow
def test_without_faults_the_example_prints_its_parameters(folder: Path) -> None:
    done = run(COMMANDS[0], folder)

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"parameters \w{16}\n", done.stdout)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_example_fails_after_one_crash_and_the_fixed_one_does_not(folder: Path) -> None:
    done = run(COMMANDS[1], folder)
    assert done.returncode == 1, done.stdout + done.stderr
    (failure,) = failures(folder / "explore")
    assert failure["faults"] == 1
    assert 'what = "crash"' in failure["rules"]

    fixed = run(COMMANDS[2], folder)
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
    assert failures(folder / "explore-fixed") == []
    assert failures(folder / "explore") == [failure]  # of the first search, as before


@pytest.mark.thorough
@pytest.mark.slow
def test_the_bug_of_the_other_example_is_found(folder: Path) -> None:
    done = run(f"{COMMANDS[3]} && {COMMANDS[4]}", folder)

    assert done.returncode == 1, done.stdout + done.stderr
    (failure,) = failures(folder.parent / "parameter_server" / "explore")
    assert failure["kind"] == "invariant"
