"""No variable, parameter or function is called `one` or `found`: a name says what the thing is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from structure.imports import ROOT

VAGUE = ("one", "found")
SUFFIXES = (".py", ".pyi", ".cpp", ".cc", ".h")
FOLDERS = ("benchmarks", "docs", "examples", "packages", "plugins", "src", "tests")
#: Comments and literals of C++.
NO_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<end>[^(\s]*)\(.*?\)(?P=end)"
    | "(\\.|[^"\\\n])*" | (?<!\d)'(\\.|[^'\\\n])*'""",
    re.DOTALL | re.VERBOSE,
)
#: `Inbox.found` of the transport's interface is an event, as `lost` is.
EVENT = re.compile(r"\bvoid (Inbox::)?found\(int peer\)|&Inbox::found\b")


def vague_names(file: Path) -> list[str]:
    """Return the vague names that a file defines, each as "line: name"."""
    text = file.read_text()
    if not any(name in text for name in VAGUE):
        return []
    names = _of_python(ast.parse(text)) if file.suffix in (".py", ".pyi") else _of_cpp(text)
    return [f"{line}: {name}" for line, name in names if name in VAGUE]


def _of_python(tree: ast.AST) -> Iterator[tuple[int, str | None]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name="found", args=ast.arguments(args=[_, ast.arg(arg="peer")])):
                pass  # the event
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                yield node.lineno, name
            case ast.alias(asname=name):
                yield node.lineno, name


def _of_cpp(text: str) -> Iterator[tuple[int, str]]:
    code = NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for name in re.findall(r"\w+", EVENT.sub("", line)):
            yield number, name


def test_names_say_what_they_are() -> None:
    files = [
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in SUFFIXES
    ]
    vague = [f"{file.relative_to(ROOT)}:{name}" for file in files for name in vague_names(file)]

    assert len(files) > 500
    assert not vague, "\n".join(vague)


@pytest.mark.parametrize(
    ("name", "text", "vague"),
    [
        (
            "a.py",
            "def f(one, *, found): ...\nfor one in x: pass\n",
            ["1: one", "1: found", "2: one"],
        ),
        ("a.py", "y = [one for one in x]\nwith x as found: pass\n", ["1: one", "2: found"]),
        (
            "a.py",
            "import a as one\ndef found(): ...\nclass C:\n    one: int\n",
            ["1: one", "2: found", "4: one"],
        ),
        (
            "a.py",
            "'one found'  # one\nclass Inbox:\n    def found(self, peer): ...\nx.found(1)\n",
            [],
        ),
        (
            "a.cpp",
            '/* one\n*/ auto one = f(); // found\nauto x = "found";\nint y = found;\n',
            ["2: one", "4: found"],
        ),
        ("a.h", 'void found(int peer);\nint found_at;\nauto x = R"(one)";\n', []),
    ],
)
def test_a_vague_name_is_a_finding(tmp_path: Path, name: str, text: str, vague: list[str]) -> None:
    (tmp_path / name).write_text(text)
    assert sorted(vague_names(tmp_path / name)) == sorted(vague)
