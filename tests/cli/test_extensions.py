"""Subcommands and checks that installed packages add. A broken one does not affect the rest."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

COMMANDS = "rpc.backends.commands"
CHECKS = "rpc.backends.checks"

GREET = """
import click

@click.command("greet")
@click.argument("name")
def greet(name):
    '''Greet a pigeon.'''
    click.echo(f"Hello {name}.")
"""

LOOK = """
from rpc_backends_cli import Finding, Section

def look():
    return Section("any", "Pigeons", [Finding("warning", "loft", "two are missing", {"left": {3}})])
"""


def _installed_check(command: Any, source: str, name: str = "pigeons", package: str = "") -> Any:
    package = package or f"rpc-{name}"
    command.install(package, {name: "look"}, source, group=CHECKS)


def _doctor(command: Any, *arguments: str) -> Any:
    return command("doctor", "--no-calls", "--json", *arguments, "TENSORPIPE")


# --- subcommands ---------------------------------------------------------------------------------


def test_a_packages_command_is_listed_and_runs(command: Any) -> None:
    command.install("rpc-pigeons", {"greet": "greet"}, GREET, group=COMMANDS)

    assert "\n  greet " in command("--help").stdout
    assert "Greet a pigeon." in command("--help").stdout
    assert "greet [OPTIONS] NAME" in command("greet", "--help").stdout
    assert command("greet", "Ada").stdout == "Hello Ada.\n"


def test_a_package_that_hangs_at_import_does_not_hang_the_help(command: Any) -> None:
    hangs = "import time\ntime.sleep(600)"
    command.install("rpc-pigeons", {"greet": "greet"}, hangs, group=COMMANDS)

    ended = command("--help")

    assert ended.status == 0
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("  greet "))
    assert "(rpc_pigeons:greet of rpc-pigeons 1.0" in line


def test_a_packages_module_is_imported_only_when_needed(
    command: Any,
) -> None:
    source = "import sys\nprint('imported', file=sys.stderr)\n" + GREET
    command.install("rpc-pigeons", {"greet": "greet"}, source, group=COMMANDS)

    assert "imported" not in command("list").stderr
    assert "imported" in command("greet", "Ada").stderr
    assert "imported" in command("--help").stderr


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("greet = 3", "is not a click.Command"),
        ("", "has no attribute 'greet'"),
    ],
)
def test_a_broken_command_does_not_affect_others(command: Any, source: str, why: str) -> None:
    command.install("rpc-pigeons", {"greet": "greet"}, source, group=COMMANDS)
    command.install("rpc-sparrows", {"greet2": "greet"}, GREET, group=COMMANDS)

    helped, asked = command("--help"), command("greet", "Ada", "--loud")

    assert helped.status == 0
    assert "rpc-pigeons 1.0" in helped.stdout
    assert "Greet a pigeon." in helped.stdout
    assert asked.status == 1
    assert why in asked.stderr
    assert "pip uninstall rpc-pigeons" in asked.stderr
    assert "Traceback" not in asked.stderr
    assert command("greet2", "Ada").stdout == "Hello Ada.\n"


def test_a_command_in_conflict_names_both_packages(command: Any) -> None:
    command.install("rpc-pigeons", {"greet": "greet"}, GREET, group=COMMANDS)
    command.install("rpc-sparrows", {"greet": "greet"}, GREET, group=COMMANDS)

    asked = command("greet", "Ada")

    assert asked.status == 1
    assert "rpc-pigeons 1.0 and rpc-sparrows 1.0 both claim it" in asked.stderr
    assert command("--help").status == 0


def test_no_package_can_replace_a_built_in_command(command: Any) -> None:
    command.install("rpc-pigeons", {"list": "greet"}, GREET, group=COMMANDS)

    assert "TENSORPIPE" in command("list").stdout
    assert "Greet a pigeon" not in command("--help").stdout


# --- checks --------------------------------------------------------------------------------------


def test_doctor_shows_the_check_of_a_package(command: Any) -> None:
    _installed_check(command, LOOK)

    ended = _doctor(command)

    assert ended.status == 0
    assert ended.json["warnings"] == 1
    assert ended.json["sections"]["pigeons"] == [
        {"level": "warning", "about": "loft", "text": "two are missing", "data": {"left": "{3}"}}
    ]
    assert "Pigeons\n  warning  loft" in command("doctor", "--no-calls", "TENSORPIPE").stdout


#: Sources of checks, and what doctor says about them.
BROKEN_CHECKS = {
    "imports": ("import no_such_library", "No module named 'no_such_library'"),
    "raises": ("def look(): raise OSError('no loft')", "OSError: no loft"),
    "returns": (
        "def look(): return 3",
        "returned int; it must return an rpc_backends_cli.Section",
    ),
    "crashes": ("import os\ndef look(): os.abort()", "SIGABRT"),
}


def test_each_broken_check_is_a_problem_and_doctor_continues(command: Any) -> None:
    for name, (source, _) in BROKEN_CHECKS.items():
        _installed_check(command, source, name)
    _installed_check(command, LOOK, "sparrows")

    ended = _doctor(command)

    assert ended.status == 1
    assert ended.json["problems"] == len(BROKEN_CHECKS)
    for name, (_, why) in BROKEN_CHECKS.items():
        (finding,) = ended.json["sections"][name]
        assert why in finding["text"]
        assert f"pip uninstall rpc-{name}" in finding["text"]
    assert ended.json["sections"]["sparrows"][0]["about"] == "loft"
    assert ended.json["sections"]["backends"]


def test_a_hanging_check_is_a_problem_and_doctor_continues(command: Any) -> None:
    _installed_check(command, "import time\ndef look(): time.sleep(600)", "hangs")
    _installed_check(command, LOOK, "sparrows")

    # On busy cores, this is too short for what does not hang.
    ended = _doctor(command, "--timeout", "2")

    assert ended.status == 1
    (finding,) = ended.json["sections"]["hangs"]
    assert finding["level"] == "problem"
    assert "The limit was 2 s" in finding["text"]
    assert "pip uninstall rpc-hangs" in finding["text"]
    assert {"sparrows", "backends"} <= set(ended.json["sections"])


def test_checks_with_equal_names_are_all_shown(command: Any) -> None:
    _installed_check(command, LOOK, "pigeons", "rpc-pigeons")
    _installed_check(command, LOOK, "pigeons", "rpc-sparrows")
    _installed_check(command, LOOK, "versions", "rpc-versions")

    sections = _doctor(command).json["sections"]

    assert {"pigeons", "pigeons of rpc-sparrows 1.0", "versions of rpc-versions 1.0"} <= set(
        sections
    )
    assert sections["versions"][0]["about"] == "Python"
