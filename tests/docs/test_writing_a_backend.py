"""docs/how-to/write-a-backend.md is complete, and its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_core.spi import COMMITMENTS, Capability
from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.marks import REQUIREMENT
from rpc_backends_testing.suite import modules
from support import steps
from support.workers import WorkerContext, Workers

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "how-to" / "write-a-backend.md"
TEXT = DOCUMENT.read_text()
EXAMPLE = ROOT / "examples" / "small_backend" / "small_backend.py"


def blocks() -> list[tuple[int, str]]:
    """Return the pieces of Python on the page, each with the number of its first line."""
    matches = re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [(TEXT.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in matches]


def execute(line: int, code: str) -> dict[str, Any]:
    """Run a piece of the page as a module of its own."""
    module = types.ModuleType(f"piece_at_line_{line}")
    exec(compile("\n" * (line - 1) + code, str(DOCUMENT), "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize(("line", "code"), blocks(), ids=lambda value: str(value)[:10])
def test_an_example_runs(line: int, code: str) -> None:
    assert execute(line, code)


def test_every_chapter_has_a_heading_for_links() -> None:
    headings = re.findall(r"^### (\w+)$", TEXT, re.MULTILINE)
    assert headings == [chapter.name for chapter in CHAPTERS]


def test_every_link_of_the_page_works() -> None:
    headings = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert links
    assert set(links) <= anchors
    files = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert all((DOCUMENT.parent / link).exists() for link in files)


def rows() -> dict[str, tuple[str, str]]:
    """Return the table of capabilities: for each, its commitment and the chapters that check it."""
    cells = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", TEXT, re.MULTILINE)
    return {
        name: (commitment, where) for name, commitment, where in cells if name in set(Capability)
    }


def test_the_page_repeats_the_commitment_of_every_capability() -> None:
    assert set(COMMITMENTS) == set(Capability)
    assert {name: commitment for name, (commitment, _) in rows().items()} == dict(COMMITMENTS)


def test_the_page_names_the_chapters_of_each_capability() -> None:
    table = rows()
    for name in modules():
        module = __import__(name, fromlist=["_"])
        for function in vars(module).values():
            for mark in getattr(function, "pytestmark", []) if callable(function) else []:
                if mark.name == REQUIREMENT and mark.kwargs["capability"]:
                    chapter = mark.kwargs["chapter"]
                    assert f"`{chapter}`" in table[mark.kwargs["capability"]][1], function.__name__


def test_the_page_shows_the_example_in_60_lines() -> None:
    code = EXAMPLE.read_text()
    assert code in [block for _, block in blocks()]
    assert len(code.splitlines()) <= 60


def register_small(me: WorkerContext, line: int, code: str) -> None:
    from torch.distributed import rpc

    backend = execute(line, code)["BACKEND"]
    rpc.backend_registry.register_backend("SMALL", *backend.value)


def test_the_backend_on_the_page_works(tmp_path: Path) -> None:
    (piece,) = [block for block in blocks() if block[1] == EXAMPLE.read_text()]
    with Workers(2) as workers:
        workers.run(register_small, *piece)
        workers.run(steps.join, f"file://{tmp_path}/store", backend="SMALL", threads=2)
        assert workers[0].call(steps.call, "worker1").split()[0] == "worker1"
        workers.run(steps.leave)


HANDLERS = [Path(__file__).with_name(f"{which}_handlers.py") for which in ("valid", "invalid")]


@cache
def mypy_errors() -> list[tuple[str, int]]:
    """Return file and line of each assignment that mypy refuses, in the files of handlers."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, HANDLERS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    errors = re.findall(r"(\w+\.py):(\d+): error:.*\[assignment\]", done.stdout)
    assert len(errors) == done.stdout.count("error:"), done.stdout
    return [(file, int(line)) for file, line in errors]


def refusals(path: Path) -> set[str]:
    """Return the names whose assignment mypy refuses in a file."""
    lines = path.read_text().splitlines()
    return {lines[line - 1].partition(":")[0] for file, line in mypy_errors() if file == path.name}


@pytest.mark.slow
def test_mypy_accepts_the_installed_handlers() -> None:
    assert refusals(HANDLERS[0]) == set()


@pytest.mark.slow
def test_mypy_refuses_handlers_that_break_the_contract() -> None:
    assert refusals(HANDLERS[1]) == {"CONSTRUCT", "INIT", "AGENT"}
