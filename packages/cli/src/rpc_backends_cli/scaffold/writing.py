"""The files of a new package, from templates."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from string import Template

from rpc_backends_cli.scaffold.names import Names
from rpc_backends_core import __version__

_TEMPLATES = Path(__file__).parent / "templates"


class _Template(Template):
    """Uses a placeholder mark that neither Python nor GitHub workflows use."""

    delimiter = "%%"


def files(names: Names, author: str | None = None) -> dict[str, str]:
    """Return the text of each file, by its path in the package's folder.

    :param author: ``Name`` or ``Name <address>``.
    """
    from rpc_backends_core.spi import CONTRACT_VERSION

    values = {
        "NAME": names.member,
        "Class": names.class_prefix,
        "package": names.package,
        "distribution": names.distribution,
        "authors": f"authors = [{_author(author)}]\n" if author else "",
        "core": __version__,
        "suite_version": str(CONTRACT_VERSION),
    }
    source = f"src/{names.package}"
    templates = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{source}/__init__.py": "__init__.py",
        f"{source}/handlers.py": "handlers.py",
        f"{source}/options.py": "options.py",
        f"{source}/py.typed": None,
        "tests/test_conformance.py": "test_conformance.py",
        "tests/test_options.py": "test_options.py",
        ".github/workflows/test.yml": "test.yml",
        ".gitignore": "gitignore",
    }
    return {path: _fill(name, values) if name else "" for path, name in templates.items()}


def write(folder: Path, texts: dict[str, str]) -> None:
    """Write files into a new folder; if that fails, the folder is removed.

    :raises OSError: the folder already exists or cannot be written.
    """
    folder.mkdir()
    try:
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill(name: str, values: dict[str, str]) -> str:
    text = (_TEMPLATES / f"{name}.txt").read_text(encoding="utf-8")
    return _Template(text).substitute(values)


def _author(text: str) -> str:
    """Return an author as a table for pyproject.toml; JSON strings are valid in TOML."""
    found = re.fullmatch(r"\s*([^<>]*?)\s*<\s*([^<>]+?)\s*>\s*", text)
    if found is None:
        return f"{{ name = {json.dumps(text.strip())} }}"
    name, address = map(json.dumps, found.groups())
    return f"{{ name = {name}, email = {address} }}" if found[1] else f"{{ email = {address} }}"
