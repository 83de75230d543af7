"""The imports between the modules of this repository, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Import(NamedTuple):
    """``importer`` imports ``name`` from ``imported``; both are names of modules."""

    importer: str
    imported: str
    name: str
    late: bool

    @property
    def packages(self) -> tuple[str, str]:
        """The packages of importer and imported."""
        return self.importer.partition(".")[0], self.imported.partition(".")[0]


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of this repository's distributions, by the module's name."""
    files: dict[str, Path] = {}
    for source in (ROOT / "src", *ROOT.glob("packages/*/src"), *ROOT.glob("plugins/*/src")):
        for file in source.rglob("*.py"):
            parts = file.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            files[name] = file
    return files


@cache
def imports() -> tuple[Import, ...]:
    """Return all imports between these modules, except those only for type checkers."""
    return tuple(each for name in modules() for each in _imports_of(name))


def _imports_of(module: str) -> Iterator[Import]:
    tree = ast.parse(modules()[module].read_text())
    packages = {name.partition(".")[0] for name in modules()}
    for node, late in _nodes(tree, late=False):
        if isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import, which is not supported here"
            pairs = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for imported, name in pairs:
            if imported.partition(".")[0] not in packages:
                continue
            if f"{imported}.{name}" in modules():
                yield Import(module, f"{imported}.{name}", "", late)
            else:
                yield Import(module, imported, name, late)


def _nodes(node: ast.AST, late: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, late
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _nodes(child, late or inside)
