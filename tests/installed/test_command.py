"""The command, in healthy environments and in broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.environments import Environment
from support.samples import COMMAND, MakeEnvironment, backend_package, hooks_package


def test_the_command_and_the_module_agree(installed: Environment) -> None:
    command = installed.command("rpc-backends", "list", "--json")
    module = installed.command("python", "-m", "rpc_backends_cli", "list", "--json")

    assert json.loads(command.stdout) == json.loads(module.stdout)
    assert "rpc-backend-faulty-tensorpipe" in command.stdout


@pytest.mark.thorough
def test_list_imports_no_backend(make_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = make_environment(*COMMAND, backend_package(tmp_path, "print('imported')"))

    result = environment.command("rpc-backends", "list")

    assert "PIGEON" in result.stdout
    assert "imported" not in result.stdout


@pytest.mark.thorough
def test_doctor_names_every_problem_and_its_package(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(
        *COMMAND,
        backend_package(
            tmp_path,
            "import a_module_nobody_has",
            name="BROKEN",
            distribution="rpc-backend-broken",
        ),
        backend_package(tmp_path, name="TWICE", distribution="rpc-backend-loft"),
        backend_package(tmp_path, name="TWICE", distribution="rpc-backend-coop"),
        backend_package(tmp_path, name="BAD-NAME", distribution="rpc-backend-bad"),
        hooks_package(tmp_path, "import another_module_nobody_has"),
    )

    result = environment.command("rpc-backends", "doctor", "--json", check=False)

    assert result.returncode != 0, result
    json.loads(result.stdout)
    for name in (
        "BROKEN",
        "rpc-backend-broken",
        "a_module_nobody_has",
        "TWICE",
        "rpc-backend-loft",
        "rpc-backend-coop",
        "BAD-NAME",
        "rpc-backend-bad",
        "rpc-tracing",
        "another_module_nobody_has",
    ):
        assert name in result.stdout, f"doctor does not name {name}\n{result}"


def test_doctor_finds_no_problem_in_a_healthy_environment(installed: Environment) -> None:
    result = installed.command("rpc-backends", "doctor", "--json", check=False)

    assert result.returncode == 0, result


def test_subcommands_come_with_their_packages(
    installed: Environment, make_environment: MakeEnvironment
) -> None:
    alone = make_environment(*COMMAND)

    def commands(environment: Environment) -> set[str]:
        shown = environment.command("rpc-backends", "--help").stdout
        _, _, below = shown.partition("Commands:\n")
        lines = below.partition("\n\n")[0].splitlines()
        return {line.split()[0] for line in lines if line[2] != " "}

    assert commands(alone) == {"list", "show", "doctor", "lock", "new"}
    assert commands(installed) - commands(alone) == {"conformance", "bench"}
