"""The example of a late `remote` call, on each backend."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.command import run_python
from support.environments import clean_environ

EXAMPLE = Path(__file__).parents[3] / "examples" / "late_remote"

pytestmark = pytest.mark.slow

BACKENDS = [
    pytest.param("TENSORPIPE", marks=pytest.mark.thorough),
    pytest.param("torch's TENSORPIPE", marks=pytest.mark.thorough),
    pytest.param("FAULTY_TENSORPIPE", marks=pytest.mark.thorough),
    "ZEROMQ",
]


def run(backend: str, to: str, rules: str | None = "late.toml") -> subprocess.CompletedProcess[str]:
    name = backend.removeprefix("torch's ")
    variables = {"RPC_BACKENDS_DENY": name} if name != backend else {}
    if rules:
        variables["RPC_BACKENDS_FAULTS"] = str(EXAMPLE / rules)
    program = (EXAMPLE / "program.py", "--backend", name, "--to", to)
    return run_python(*program, env=clean_environ(variables))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_late_call_to_oneself_ends_with_an_error(backend: str) -> None:
    """In torch alone, `to_here` never returns."""
    done = run(backend, "worker0")

    assert done.returncode == 0, done.stderr
    assert "INTERNAL ASSERT FAILED" in done.stderr
    assert "rref_context" in done.stderr
    first, second = done.stdout.splitlines()
    late = "RRef creation via rpc.remote() timed out"
    waited = "RPCErr:1:RPC ran for more than set timeout (1000 ms)"
    assert first.startswith((f"to_here: {waited}", f"to_here: {late}"))
    # torch notes the timeout a moment after to_here() has ended.
    assert second.startswith((f"pass on: {late}", "pass on: fine"))


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
