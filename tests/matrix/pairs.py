"""The supported pairs of torch and Python, from the core's pyproject.toml and the index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


@dataclass(frozen=True, order=True)
class Pair:
    """A version of torch, and a minor version of Python."""

    torch: Version
    python: Version

    def __str__(self) -> str:
        """Return for example ``torch 2.9.1, Python 3.11``."""
        return f"torch {self.torch}, Python {self.python}"


def supported_torch() -> SpecifierSet:
    """Return the versions of torch that the core requires."""
    requirements = map(Requirement, _project()["dependencies"])
    return next(
        requirement.specifier for requirement in requirements if requirement.name == "torch"
    )


def supported_pythons() -> list[Version]:
    """Return the minor versions of Python that the core's classifiers name."""
    found = map(_CLASSIFIER.fullmatch, _project()["classifiers"])
    return [Version(match[1]) for match in found if match]


def published_torch(python: Version | None = None) -> list[Version]:
    """Return the versions of torch on the index, without pre-releases.

    :param python: only those with a wheel for this Python; by default for the running one.
    :raises RuntimeError: pip cannot read the index; the text has pip's error.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    if python is not None:
        command += ["--only-binary", ":all:", "--python-version", str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("Available versions:")]
    if not lines:
        raise RuntimeError(f"pip cannot list the versions of torch:\n{done.stderr}")
    words = lines[0].partition(":")[2].split(",")
    return sorted({Version(Version(word.strip()).public) for word in words})


def newest_of_each_minor(versions: Iterable[Version], bounds: SpecifierSet) -> list[Version]:
    """Return the newest version of each minor version that is within ``bounds``, in order."""
    newest: dict[tuple[int, int], Version] = {}
    for version in sorted(versions):
        if version in bounds:
            newest[version.major, version.minor] = version
    return list(newest.values())


def choose(torches: list[Version], pythons: list[Version], only: str) -> list[Pair]:
    """Return the pairs that ``only`` names; all pairs if it is empty.

    :param only: words such as ``2.9`` (a torch) and ``py3.12`` (a Python), separated by spaces.
    :raises ValueError: a word names no supported version.
    """
    words = only.split()
    chosen_pythons = [
        one for one in pythons if f"py{one}" in words or not any(w.startswith("py") for w in words)
    ]
    names = [word for word in words if not word.startswith("py")]
    for word in words:
        known = [f"py{one}" for one in pythons] if word.startswith("py") else []
        if word not in known and not any(_is_named(one, word) for one in torches):
            raise ValueError(
                f"{word!r} is no supported version. Supported are torch "
                f"{', '.join(f'{one.major}.{one.minor}' for one in torches)} and Python "
                f"{', '.join(f'py{one}' for one in pythons)}."
            )
    chosen = [one for one in torches if not names or any(_is_named(one, name) for name in names)]
    return [Pair(torch, python) for torch in chosen for python in chosen_pythons]


def interpreter(python: Version) -> Path | None:
    """Return the path of a Python of this minor version; None if there is none on this machine."""
    code = "import sys; print(sys.base_prefix, '%d.%d' % sys.version_info[:2])"
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"), reverse=True)
    for name in (sys.executable, f"python{python}", *map(str, pyenv)):
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        prefix, _, found = done.stdout.strip().rpartition(" ")
        if done.returncode == 0 and found == str(python):
            return Path(prefix, "bin", f"python{python}")
    return None


def _is_named(version: Version, word: str) -> bool:
    return word in (str(version), f"{version.major}.{version.minor}")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project
