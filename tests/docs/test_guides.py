"""The tutorial and the how-to pages: their Python runs, and their commands print what they show."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from structure.imports import ROOT
from support.environments import clean_environ

HOW_TO = ROOT / "docs" / "how-to"
TUTORIAL = ROOT / "docs" / "tutorial" / "index.md"
IN_CPP = HOW_TO / "write-a-backend-in-cpp.md"
PAGES = [
    HOW_TO / f"{name}.md"
    for name in (
        "choose-a-backend",
        "debug-a-hang",
        "encrypt",
        "leave-tensorpipe",
        "port-a-backend",
        "run-the-conformance-suite",
    )
]


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Run a command, which must succeed; return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environ(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_blocks(page: Path) -> list[str]:
    """Return the Python on a page, without the indentation of a list."""
    found = re.finditer(r"^( *)```python\n(.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{match[1]}", "", match[2], flags=re.MULTILINE) for match in found]


def test_each_python_block_of_a_page_runs(tmp_path: Path) -> None:
    """All run in one process, since importing torch takes seconds; each has its own namespace."""
    blocks = [(page.stem, block) for page in PAGES for block in python_blocks(page)]
    assert {name for name, _ in blocks} == {page.stem for page in PAGES}
    source = f"for name, block in {blocks!r}: exec(compile(block, name, 'exec'), {{}})"
    run([sys.executable, "-c", source], tmp_path)


def sessions() -> list[tuple[str, str, str]]:
    """Return the folder, command and output of each command of the tutorial that is marked."""
    found = []
    marked = re.findall(
        r"<!-- run: (\S+) -->\n\n```console\n(.*?)```", TUTORIAL.read_text(), re.DOTALL
    )
    for folder, block in marked:
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            found.append((folder, command, output))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "command", "output"), sessions(), ids=lambda value: value[:40])
def test_a_command_of_the_tutorial_prints_what_is_shown(
    folder: str, command: str, output: str
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert run(["bash", "-c", command], ROOT / folder, PATH=path) == output


@pytest.mark.slow
def test_the_backend_in_cpp_is_built_and_calls_itself(tmp_path: Path) -> None:
    text = IN_CPP.read_text()
    files = re.findall(r"<!-- build: (\S+) -->\n\n```\w+\n(.*?)```", text, re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, content in files:
        (tmp_path / name).write_text(content.replace("29511", str(port)))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    run([*pip, "--target", "installed", "."], tmp_path, CFLAGS="-O0")
    installed = str(tmp_path / "installed")
    printed = run([sys.executable, "program.py"], tmp_path, PYTHONPATH=installed)
    assert printed == re.findall(r"\$ python program.py\n(.*?)```", text, re.DOTALL)[0]
