"""The tutorial shows code of the examples as it is, and commands that print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

from support.environments import clean_environ

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "tutorial" / "index.md").read_text()
PARTS = re.findall(r"<!-- part of: (\S+) -->\n\n```\w+\n(.*?)```", TEXT, re.DOTALL)
RUNS = re.findall(r"<!-- run in: (\S+) -->\n\n```console\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    (folder, *part.partition("\n")[::2])
    for folder, block in RUNS
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize(("file", "code"), PARTS)
def test_code_of_the_tutorial_is_that_of_the_example(file: str, code: str) -> None:
    text = (ROOT / file).read_text()
    assert any(indent(code, " " * width) in text for width in (0, 4, 8))


def test_commands_on_the_parameter_server_print_what_its_readme_shows() -> None:
    # A test of fault injection runs each command of that README and compares the output.
    readme = (ROOT / "examples" / "parameter_server" / "README.md").read_text()
    shown = {
        tuple(part.partition("\n")[::2])
        for block in re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    }
    for folder, command, output in COMMANDS:
        if folder == "examples/parameter_server":
            assert (command, output) in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "output"),
    [(command, output) for folder, command, output in COMMANDS if folder == "examples"],
)
def test_a_command_prints_what_the_tutorial_shows(command: str, output: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=ROOT / "examples",
        env=clean_environ({"PATH": path, "TP_SOCKET_IFNAME": "lo"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, output), done.stderr
