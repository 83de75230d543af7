"""Errors that the command reports before it starts any process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from demo.__main__ import demo

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_without_scikit_learn_the_error_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)

    result = CliRunner().invoke(demo, ["--backend", "TENSORPIPE"])

    assert result.exit_code == 1
    assert "pip install -r examples/demo/requirements.txt" in result.output


def test_the_error_names_an_unknown_backend() -> None:
    result = CliRunner().invoke(demo, ["--backend", "TENSORPIPE", "--backend", "NO_SUCH_BACKEND"])

    assert result.exit_code == 1
    assert "NO_SUCH_BACKEND" in result.output


def test_less_than_one_epoch_is_refused() -> None:
    result = CliRunner().invoke(demo, ["--epochs", "0"])

    assert result.exit_code == 2
    assert "--epochs" in result.output


def test_importing_the_command_is_cheap() -> None:
    code = (
        "import sys; import demo.__main__; "
        "print({'torch', 'sklearn', 'numpy', 'rich'} & set(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=True
    )

    assert ended.stdout.strip() == "set()"
