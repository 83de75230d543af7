"""An installed package that is not used adds almost nothing to the start of RPC."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rpc_backends_faults import hooks, settings
from support.environments import clean_environ

START = """
import sys
from rpc_backends_faults import hooks

agent = object()
starting = hooks.rpc_backends_agent("TENSORPIPE")
next(starting)
try:
    starting.send(agent)
except StopIteration as end:
    print("bare" if end.value is agent else "wrapped")
except Exception as error:
    print(type(error).__name__, error)
print(sorted(name for name in sys.modules if name.startswith("rpc_backends_faults.")))
"""


def _start(**variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=clean_environ(variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_hooks_look_for_every_variable_of_the_package() -> None:
    assert all(name.startswith(hooks._VARIABLES) for name in settings.VARIABLES)


def test_a_start_of_rpc_imports_only_the_hooks() -> None:
    assert _start() == ["bare", "['rpc_backends_faults.hooks']"]


@pytest.mark.parametrize("name", ["RPC_BACKENDS_FAULTS", "RPC_BACKENDS_FAULTS_SEED"])
def test_an_invalid_variable_is_still_an_error(name: str) -> None:
    outcome, modules = _start(**{name: "not there"})

    assert outcome.startswith("RefusedError")
    assert "rpc_backends_faults.settings" in modules
