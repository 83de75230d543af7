"""Compile extensions in C++ once, for the editable install and for the wheels that tests install.

``build/native`` keeps the compiler's output under a hash of its input: the sources of the distribution,
the headers of the others, and the versions of torch and Python. :func:`prebuilt` makes setuptools use it.
The Makefile runs this file, which therefore needs only the standard library and torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "native"


def distributions() -> list[Path]:
    """Return the folders of the distributions with C++."""
    return sorted(path.parent for path in ROOT.glob("p*/*/setup.py"))


def compiled(folder: Path) -> Path:
    """Return the folder with a distribution's extensions; compile them if the folder is missing."""
    versions = f"{metadata.version('torch')}-{sys.implementation.cache_tag}"
    kept = KEPT / f"{folder.name}-{_hash(folder, versions)}"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        # Object files are kept too, so that ninja compiles only what a change affects.
        objects = KEPT / "objects" / f"{folder.name}-{versions}"
        with tempfile.TemporaryDirectory(dir=KEPT) as made:
            build = ["build_ext", "--build-lib", f"{made}/new", "--build-temp", str(objects)]
            subprocess.run(
                [sys.executable, "setup.py", "-q", *build], cwd=folder, env=_environ(), check=True
            )
            Path(made, "new").rename(kept)
    return kept


@contextlib.contextmanager
def prebuilt(*folders: Path) -> Iterator[dict[str, str]]:
    """Yield environment variables that make setuptools use the compiled extensions.

    A wheel contains every extension that setuptools finds: to build a wheel, pass one folder.
    """
    with tempfile.TemporaryDirectory() as place:
        library = Path(place, "library")
        for folder in folders:
            # A plain copy is newer than the sources, so setuptools does not compile again.
            shutil.copytree(
                compiled(folder), library, copy_function=shutil.copyfile, dirs_exist_ok=True
            )
        config = Path(place, "setup.cfg")
        config.write_text(f"[build]\nbuild_lib={library}\n[build_ext]\nbuild_lib={library}\n")
        yield {"DIST_EXTRA_CONFIG": str(config)}


def _hash(folder: Path, versions: str) -> str:
    headers = ROOT.glob("p*/*/src/*/include/**/*.h")
    sources = {folder / "setup.py", *headers, *(folder / "csrc").rglob("*")}
    found = hashlib.sha256(f"{versions} {sysconfig.get_platform()}".encode())
    for source in sorted(path for path in sources if path.is_file()):
        found.update(f"\n{source.relative_to(ROOT)}\n".encode())
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def _environ() -> dict[str, str]:
    # Distributions find each other's headers before either is installed.
    sources = [str(path.parents[1]) for path in ROOT.glob("p*/*/src/*/__init__.py")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}


def main(arguments: Iterable[str]) -> None:
    """Compile all extensions in parallel, then run the given command with their `prebuilt`."""
    folders = distributions()
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, folders))
    command = list(arguments)
    if command:
        with prebuilt(*folders) as variables:
            subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
