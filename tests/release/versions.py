"""The version of a release: the core's pyproject.toml has it, and every other place must agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from support.environments import distributions, read_project

_IN_PYPROJECT = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
_IN_SOURCE = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def places(root: Path) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Yield each file that has the version, with a pattern whose group is the version."""
    for folder in distributions(root):
        yield folder / "pyproject.toml", _IN_PYPROJECT
        for file in sorted(folder.glob("src/*/__init__.py")):
            if _IN_SOURCE.search(file.read_text()):
                yield file, _IN_SOURCE


def version(root: Path) -> str:
    """Return the version in the core's pyproject.toml."""
    return str(read_project(root)["version"])


def deviations(root: Path) -> list[str]:
    """Return a line for each place with another version than the core's pyproject.toml."""
    wanted, texts = version(root), []
    for file, pattern in places(root):
        match = pattern.search(file.read_text())
        if match is None or match[1] != wanted:
            there = match[1] if match else "no version"
            texts.append(f"{file.relative_to(root)} has {there}, and pyproject.toml has {wanted}")
    changelog = (root / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[({re.escape(wanted)}|Unreleased)\]", changelog, re.MULTILINE):
        texts.append(f"CHANGELOG.md has neither a section [{wanted}] nor [Unreleased]")
    return texts


def set_version(root: Path, new: str) -> list[Path]:
    """Write a version into every place, and return the files."""
    written = []
    for file, pattern in list(places(root)):
        text = file.read_text()
        match = pattern.search(text)
        assert match, file
        file.write_text(text[: match.start(1)] + new + text[match.end(1) :])
        written.append(file)
    return written
