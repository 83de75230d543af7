"""The command as a whole: help, version, and errors without tracebacks."""

from __future__ import annotations

from typing import Any

import pytest

NAMES = ("list", "show", "doctor", "new", "conformance", "bench")


def test_help_imports_neither_torch_nor_rich(command: Any) -> None:
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


def test_the_version_is_that_of_the_core(command: Any) -> None:
    from rpc_backends_core import __version__

    assert __version__ in command("--version").stdout


def test_an_unimportable_command_does_not_affect_others(command: Any) -> None:
    code = """
        import sys
        sys.modules["rpc_backends_cli.show"] = None
        sys.argv = ["rpc-backends", *sys.argv[1:]]
        from rpc_backends_cli import main
        main()
    """

    listed = command.python("-c", "if True:" + code, "--help")
    asked = command.python("-c", "if True:" + code, "show", "--quick")

    assert listed.status == 0
    assert "doctor" in listed.stdout
    assert "cannot be loaded" in listed.stdout
    assert asked.status == 1
    assert "pip install" in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("conformance", "pip install rpc-backends-testing"),
        ("bench", "pip install rpc-backends-bench"),
        ("inspect", "pip install rpc-backends-inspect"),
        ("trace", "pip install rpc-backends-inspect"),
        ("faults", "pip install rpc-backends-faults"),
        ("guard", "pip install rpc-backends-guard"),
        ("build-agents", "pip install rpc-backends-agents"),
        ("secret", "pip install rpc-backends-agents"),
        ("demo", "`make demo`"),
    ],
)
def test_a_command_that_is_not_installed_names_its_package(
    command: Any, name: str, remedy: str
) -> None:
    code = """
        import sys
        from rpc_backends_cli import installed, main
        installed.commands = lambda taken: {}
        sys.argv = ["rpc-backends", *sys.argv[1:]]
        main()
    """

    ended = command.python("-c", "if True:" + code, name, "ZEROMQ", "--quick")

    assert ended.status == 1
    assert ended.stderr.startswith(f"Error: `{name}` cannot be used: ")
    assert remedy in ended.stderr


def test_the_public_names_are_imported_lazily(command: Any) -> None:
    code = """
        import sys
        import rpc_backends_cli
        print(sorted({"click", "rpc_backends_core"} & set(sys.modules)))
        print({name: callable(getattr(rpc_backends_cli, name)) for name in rpc_backends_cli.__all__})
    """

    ended = command.python("-c", "if True:" + code)

    assert ended.stdout.splitlines()[0] == "[]", ended.stderr
    assert "False" not in ended.stdout.splitlines()[1]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("inspct", "Did you mean 'inspect'?"),
        ("docter", "Did you mean 'doctor'?"),
        ("xyz", "doctor"),
    ],
)
def test_an_unknown_command_gets_the_nearest(command: Any, name: str, hint: str) -> None:
    ended = command(name, "--json")
    assert ended.status == 2
    assert f"no such command {name!r}. " in ended.stderr
    assert hint in ended.stderr
    assert command("show").status == 2
    assert command("list", "--no-such-option").status == 2


@pytest.mark.slow
def test_an_error_shows_a_traceback_only_with_debug(command: Any) -> None:
    env = {"RPC_BACKENDS_DENY": "TENSORPIP"}

    short, long = command("list", env=env), command("--debug", "list", env=env)

    assert short.status == long.status == 1
    assert short.stderr.startswith("Error: RPC_BACKENDS_DENY names 'TENSORPIP'")
    assert "Traceback" not in short.stderr
    assert "Traceback" in long.stderr
    assert "Traceback" in command("list", "--debug", env=env).stderr
