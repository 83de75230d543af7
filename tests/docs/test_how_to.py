"""The how-to pages: code and quick commands run, options exist, quoted errors are those of the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

from rpc_backends_cli.app import cli
from rpc_backends_processes import free_port
from support.environments import clean_environ
from support.messages import missing_from_the_code

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
CPP = HOW_TO / "write-a-backend-in-cpp.md"
PORT = HOW_TO / "port-a-backend.md"
COMMANDS = sorted(
    {
        command
        for page in HOW_TO.glob("*.md")
        for command in re.findall(
            r"^\$ (?:[A-Z_]+=\S+ )*(rpc-backends .+?)(?: +#.*)?$", page.read_text(), re.MULTILINE
        )
    }
)


def blocks(page: Path, language: str) -> list[str]:
    """Return the pieces of code in one language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_a_page_shows(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()  # some commands take this folder, which must exist
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[1:]
    group: click.Command = cli
    while isinstance(group, click.Group) and words:
        subcommand = group.get_command(click.Context(group), words.pop(0))
        assert subcommand is not None, command
        group = subcommand
    group.make_context(group.name, words)


#: Errors in the last section of each page: items of a list in bold code, or code in a table.
ERRORS = sorted(
    (page.stem, text)
    for page in HOW_TO.glob("*.md")
    for section in page.read_text().split("## When it fails\n")[1:]
    for text in re.findall(r"^(?:- \*\*|\| )`([^`/]+)`(?:\*\*| \|)", section, re.MULTILINE)
)


def test_pages_quote_errors() -> None:
    assert len(ERRORS) > 10


@pytest.mark.parametrize(("page", "text"), ERRORS)
def test_a_quoted_error_is_one_of_the_code(page: str, text: str) -> None:
    assert missing_from_the_code(text) == [], page


def invoke(command: str, folder: Path) -> str:
    """Run a command of a page in a shell; return what it prints."""
    environ = clean_environ(
        {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
    )
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_list_shows_the_backends_of_the_pages(tmp_path: Path) -> None:
    assert "rpc-backends list" in COMMANDS

    listing = invoke("rpc-backends list", tmp_path)

    assert "TENSORPIPE" in listing
    assert "ZEROMQ" in listing


def test_the_secret_command_writes_a_private_file(tmp_path: Path) -> None:
    assert "rpc-backends secret --out ~/rpc.secret" in COMMANDS

    invoke("rpc-backends secret --out ~/rpc.secret", tmp_path)

    assert (tmp_path / "rpc.secret").stat().st_mode & 0o077 == 0


def test_the_rules_on_the_page_pass_the_check(tmp_path: Path) -> None:
    rules = [block for block in blocks(HOW_TO / "inject-faults.md", "toml") if "[[rule]]" in block]
    assert rules
    for text in rules:
        (tmp_path / "rules.toml").write_text(text)
        invoke("rpc-backends faults check rules.toml", tmp_path)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_backend_in_cpp_is_built_and_calls_itself(tmp_path: Path) -> None:
    text = CPP.read_text()
    port = free_port()
    for name, content in re.findall(r"<!-- build: (\S+) -->\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content.replace("29511", str(port)))
    installed = str(tmp_path / "installed")
    pip = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
    execute([*pip, "--target", installed, "."], tmp_path)
    printed = execute(["program.py"], tmp_path, PYTHONPATH=installed)
    assert printed == re.findall(r"\$ python program.py\n(.*?)```", text, re.DOTALL)[0]


def execute(arguments: list[str], folder: Path, **variables: str) -> str:
    """Run Python in a folder, without an error; return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean_environ(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(code: str) -> types.ModuleType:
    """Run a piece of a page as a module."""
    module = types.ModuleType("piece")
    exec(compile(code, "piece", "exec"), vars(module))
    return module


def test_a_ported_backend_makes_options_of_its_own_type() -> None:
    _, after = blocks(PORT, "python")
    backend = run(after).BACKEND

    options = backend.construct_rpc_backend_options_handler(60, "env://")

    assert type(options) is backend.options_type


def test_the_old_style_backend_registers_on_import() -> None:
    before, _ = blocks(PORT, "python")
    names = "print([member.name for member in rpc.BackendType])"
    done = subprocess.run(
        [sys.executable, "-c", before + names], capture_output=True, text=True, check=True
    )
    assert "CARRIER" in done.stdout
