"""The tutorial shows code of the examples, and its commands print the output that it shows."""

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
def test_the_tutorial_shows_code_of_the_examples(file: str, code: str) -> None:
    text = (ROOT / file).read_text()
    assert any(indent(code, " " * width) in text for width in (0, 4, 8))


def test_tutorial_and_readme_show_the_same_output() -> None:
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
def test_commands_print_the_output_in_the_tutorial(command: str, output: str) -> None:
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
