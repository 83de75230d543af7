"""The examples run unchanged, and the guide shows their code."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.environments import Environment, build_wheels, clean_environ
from support.samples import MakeEnvironment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(environment: Environment, *arguments: str) -> str:
    """Run an example with the environment's Python; return what it printed."""
    done = subprocess.run(
        [str(environment.python), str(EXAMPLES / arguments[0]), *arguments[1:]],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_workers_call_over_each_installed_backend(installed: Environment) -> None:
    for name in ("TENSORPIPE", "FAULTY_TENSORPIPE"):
        output = run(installed, "two_workers.py", name)
        assert f"BackendType.{name}: 1 + 1 = [2.0, 2.0]" in output


def test_the_ten_line_backend_works_once_installed(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    built = build_wheels([EXAMPLES / "ten_line_backend"], tmp_path / "dist")
    environment = make_environment("rpc-backend-tensorpipe", *built.values())
    assert "BackendType.MINE: 1 + 1 = [2.0, 2.0]" in run(environment, "two_workers.py", "MINE")


def test_the_guide_shows_the_ten_line_backend() -> None:
    guide = (ROOT / "docs" / "how-to" / "write-a-backend.md").read_text()
    code = (EXAMPLES / "ten_line_backend" / "my_backend.py").read_text()
    assert code.partition('"""\n\n')[2] in guide
    assert 'MINE = "my_backend:BACKEND"' in guide
