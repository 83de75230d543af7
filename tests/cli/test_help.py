"""The command as a whole: help, version, and errors without tracebacks."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ("list", "show", "doctor", "demo", "bench")


def test_help_imports_neither_torch_nor_what_draws_tables(command: Any) -> None:
    code = """
        import sys
        from rpc_backends_cli.app import cli
        cli(["--help"], standalone_mode=False)
        print(sorted({"torch", "rich", "pluggy", "numpy"} & set(sys.modules)))
    """

    ended = command.python("-c", "if True:" + code)

    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_with_an_example(command: Any, flag: str) -> None:
    ended = command(flag)

    assert ended.status == 0
    for name in NAMES:
        assert f"\n  {name} " in ended.stdout
        assert f"rpc-backends {name}" in ended.stdout


@pytest.mark.parametrize("name", ["list", "show", "doctor", "bench"])
def test_each_command_shows_an_example(command: Any, name: str) -> None:
    ended = command(name, "-h")

    assert ended.status == 0
    assert f"rpc-backends {name}" in ended.stdout.partition("Example")[2]


def test_the_version_is_the_core_s(command: Any) -> None:
    from rpc_backends_core import __version__

    assert __version__ in command("--version").stdout


def test_a_command_that_cannot_be_imported_harms_no_other(command: Any) -> None:
    code = """
        import sys
        sys.modules["demo.command"] = None
        sys.argv = ["rpc-backends", *sys.argv[1:]]
        from rpc_backends_cli import main
        main()
    """

    listed = command.python("-c", "if True:" + code, "--help")
    asked = command.python("-c", "if True:" + code, "demo", "--quick")

    assert listed.status == 0
    assert "doctor" in listed.stdout
    assert "cannot be loaded" in listed.stdout
    assert asked.status == 1
    assert "pip install" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_wrong_use_is_status_2(command: Any) -> None:
    assert command("no-such-command").status == 2
    assert command("show").status == 2
    assert command("list", "--no-such-option").status == 2


@pytest.mark.slow
def test_an_error_is_one_message_and_a_traceback_only_with_debug(command: Any) -> None:
    env = {"RPC_BACKENDS_DENY": "TENSORPIP"}

    short, long = command("list", env=env), command("--debug", "list", env=env)

    assert short.status == long.status == 1
    assert short.stderr.startswith("Error: RPC_BACKENDS_DENY names 'TENSORPIP'")
    assert "Traceback" not in short.stderr
    assert "Traceback" in long.stderr
    assert "Traceback" in command("list", "--debug", env=env).stderr
