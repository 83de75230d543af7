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
            _run_quietly([sys.executable, "setup.py", "-q", *build], folder)
            Path(made, "new").rename(kept)
    return kept


def _run_quietly(command: list[str], folder: Path) -> None:
    """Run a build, and show its output only if it fails or has a warning of the compiler.

    torch shows each command of ninja.
    """
    print(f"==> compiling {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode or "warning:" in done.stdout:
        sys.stderr.write(done.stdout)
    done.check_returncode()


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
    """Compile all extensions in parallel, then run the given command with their `prebuilt`.

    :param arguments: the command; before it may be ``--only FOLDERS --``, to compile only these.
    """
    folders, command = distributions(), list(arguments)
    if command[:1] == ["--only"]:
        end = command.index("--")
        folders, command = [ROOT / name for name in command[1:end]], command[end + 1 :]
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, folders))
    if command:
        with prebuilt(*folders) as variables:
            subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
