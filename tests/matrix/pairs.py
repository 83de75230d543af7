"""The supported pairs of torch and Python, from the core's pyproject.toml and the index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
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
    matches = map(_CLASSIFIER.fullmatch, _project()["classifiers"])
    return [Version(match[1]) for match in matches if match]


def published_torch(python: Version) -> list[Version]:
    """Return the versions of torch on the index with a wheel for a Python, without pre-releases.

    :raises RuntimeError: pip cannot read the index; the text has pip's error.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
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


def torches_for(python: Version) -> list[Version]:
    """Return the newest version of each supported minor of torch with a wheel for a Python, in order.

    :raises RuntimeError: pip cannot read the index.
    """
    return newest_of_each_minor(published_torch(python), supported_torch())


def choose(torches: Mapping[Version, Sequence[Version]], only: str) -> list[Pair]:
    """Return the pairs that ``only`` names; all pairs if it is empty.

    :param torches: the versions of torch that there are for each Python.
    :param only: words such as ``2.9`` (a torch) and ``py3.12`` (a Python), separated by spaces.
    :raises ValueError: a word names no supported version, or there are no pairs of these versions.
    """
    words = only.split()
    pythons = [word for word in words if word.startswith("py")]
    names = [word for word in words if word not in pythons]
    known = sorted({version for versions in torches.values() for version in versions})
    unknown = [word for word in pythons if word not in map("py{}".format, torches)]
    unknown += [name for name in names if not any(_is_named(version, name) for version in known)]
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no supported version. Supported are torch "
            f"{', '.join(f'{version.major}.{version.minor}' for version in known)} and Python "
            f"{', '.join(map('py{}'.format, torches))}."
        )
    chosen = [
        Pair(version, python)
        for python, versions in torches.items()
        if not pythons or f"py{python}" in pythons
        for version in versions
        if not names or any(_is_named(version, name) for name in names)
    ]
    if not chosen:
        raise ValueError(f"no torch of {only!r} was published for a Python of it.")
    return sorted(chosen)


def interpreter(python: Version) -> Path | None:
    """Return the path of a Python of this minor version; None if there is none on this machine."""
    code = "import sys; print(sys.base_prefix, '%d.%d' % sys.version_info[:2])"
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"), reverse=True)
    for name in (sys.executable, f"python{python}", *map(str, pyenv)):
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        prefix, _, version = done.stdout.strip().rpartition(" ")
        if done.returncode == 0 and version == str(python):
            return Path(prefix, "bin", f"python{python}")
    return None


def _is_named(version: Version, word: str) -> bool:
    return word in (str(version), f"{version.major}.{version.minor}")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project
