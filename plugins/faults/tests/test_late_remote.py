"""The example of torch's failure after a late `remote` call, on each backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.environments import clean_environ

EXAMPLE = Path(__file__).parents[3] / "examples" / "late_remote"

pytestmark = pytest.mark.slow

BACKENDS = [
    "TENSORPIPE",
    pytest.param("torch's TENSORPIPE", marks=pytest.mark.thorough),
    pytest.param("FAULTY_TENSORPIPE", marks=pytest.mark.thorough),
    "ZEROMQ",
]


def run(backend: str, to: str, rules: str | None = "late.toml") -> subprocess.CompletedProcess[str]:
    name = backend.removeprefix("torch's ")
    variables = {"RPC_BACKENDS_DENY": name} if name != backend else {}
    if rules:
        variables["RPC_BACKENDS_FAULTS"] = str(EXAMPLE / rules)
    return subprocess.run(
        [sys.executable, EXAMPLE / "program.py", "--backend", name, "--to", to],
        check=False,
        env=clean_environ(variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_call_to_oneself_never_returns(backend: str) -> None:
    done = run(backend, "worker0")

    assert done.returncode == 1, done.stderr
    assert "INTERNAL ASSERT FAILED" in done.stderr
    assert "rref_context" in done.stderr
    assert done.stdout == "to_here: has not returned\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_call_to_another_leaves_an_unusable_rref(backend: str) -> None:
    done = run(backend, "worker1")

    assert done.returncode == 0, done.stderr
    assert "INTERNAL ASSERT FAILED" not in done.stderr
    first, second = done.stdout.splitlines()
    assert first == "to_here: fine"
    assert second.startswith("pass on: RRef creation via rpc.remote() timed out")


def test_without_the_rule_all_calls_succeed() -> None:
    done = run("TENSORPIPE", "worker0", rules=None)

    assert done.stdout == "to_here: fine\npass on: fine\n", done.stderr
