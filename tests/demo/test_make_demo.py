"""What `make demo` does in a new clone before the demo begins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the commands that `make demo` would run, with an environment that does not exist yet."""
    place = tmp_path_factory.mktemp("clone") / "venv"
    done = subprocess.run(
        ["make", "-n", "demo", f"VENV={place}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").splitlines()


def test_the_demo_installs_no_tools_for_tests_and_documents(steps: list[str]) -> None:
    installs = [step for step in steps if "pip install" in step]

    assert any("examples/demo/requirements.txt" in step for step in installs)
    extras = ("[dev", "docs]", "packages/bench", "packages/testing", "plugins/ucx")
    assert [step for step in installs if any(extra in step for extra in extras)] == []


def test_pip_is_quiet(steps: list[str]) -> None:
    assert [step for step in steps if "pip install" in step and "pip install -q" not in step] == []
