"""Runs clang-tidy on the C++; a file that has passed is checked again only if something has changed.

::

    make tidy      # all files
    make lint      # those that differ from the last commit, or include a header that does

The result for a file depends on the file, the headers of this project that it includes, its compile
command, `.clang-tidy`, and the versions of clang-tidy, pybind11, torch and UCX. Fingerprints of files
that passed are kept in ``build/tidy``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import posixpath
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = ROOT / "build/cpp/release/compile_commands.json"
PASSED = ROOT / "build/tidy"
_VERSIONS = ("clang-tidy", "pybind11", "torch", "libucx-cu12")

_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)', re.M)


def main() -> int:
    """Check files; return 1 if clang-tidy has a finding."""
    parser = argparse.ArgumentParser(prog="make tidy")
    parser.add_argument("--changed", action="store_true", help="only what the last commit lacks")
    given = parser.parse_args()
    changed = _changed() if given.changed else None
    if changed is not None and not changed:
        return 0
    keys = {
        file: fingerprint(file, command)
        for file, command in sources().items()
        if changed is None or _with_headers(file) & changed
    }
    waiting = [(file, key) for file, key in keys.items() if not (PASSED / key).exists()]
    PASSED.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_processors()) as threads:
        passed = list(threads.map(_check, waiting))
    failed = passed.count(False)
    print(f"{len(keys)} files, {len(waiting)} of them checked now, {failed} with findings")
    return 1 if failed else 0


def sources() -> dict[Path, str]:
    """Return the files of this project's C++, each with its compile command; no tests."""
    entries = json.loads(COMMANDS.read_text())
    folders = _folders()
    return {
        Path(entry["file"]): entry["command"]
        for entry in entries
        if any(Path(entry["file"]).is_relative_to(folder) for folder in folders)
    }


def fingerprint(file: Path, command: str) -> str:
    """Return a hash of what the result for a file depends on."""
    versions = [f"{name} {metadata.version(name)}" for name in _VERSIONS]
    total = hashlib.sha256("\0".join([command, *versions]).encode())
    for path in (ROOT / ".clang-tidy", *sorted(_with_headers(file))):
        total.update(f"{path.relative_to(ROOT)}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def _with_headers(file: Path) -> set[Path]:
    """Return a file and the headers of this project that it includes, directly or not."""
    reached: set[Path] = set()
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for name in _INCLUDE.findall(path.read_text()):
            # A name may fit headers of several packages; all of them count.
            waiting += [
                header
                for header in _files().get(Path(name).name, ())
                if str(header).endswith(f"/{posixpath.normpath(name).lstrip('./')}")
            ]
    return reached


def _folders() -> list[Path]:
    return [*ROOT.glob("p*/*/csrc"), *ROOT.glob("p*/*/src/*/include")]


@functools.cache
def _files() -> dict[str, list[Path]]:
    """Return the files that may be included, by the last part of their names."""
    files: dict[str, list[Path]] = {}
    for path in (path for folder in _folders() for path in folder.rglob("*") if path.is_file()):
        files.setdefault(path.name, []).append(path)
    return files


def _changed() -> set[Path]:
    """Return the files that differ from the last commit."""
    listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    staged = ["git", "diff", "-z", "--name-only", "--cached"]
    names = [
        os.fsdecode(name)
        for command in (listed, staged)
        for name in subprocess.run(
            command, cwd=ROOT, capture_output=True, check=False
        ).stdout.split(b"\0")
    ]
    return {ROOT / name for name in names if name}


def _processors() -> int:
    return int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


def _check(waiting: tuple[Path, str]) -> bool:
    """Check a file and print the findings; note at once that it passed, so that a next run goes on."""
    file, key = waiting
    tidy = Path(sys.executable).with_name("clang-tidy")
    command: list[str | Path] = [tidy, "--quiet", "-p", COMMANDS.parent, file]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout + result.stderr, flush=True)
    else:
        (PASSED / key).touch()
    return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
