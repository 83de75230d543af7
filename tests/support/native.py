"""Compile extensions in C++ once, for the editable install and for the wheels that tests install.

``build/native`` keeps the compiler's output under a hash of its input: the sources of the distribution,
what the others share, the compiler with its flags, and the versions of Python and of what is compiled
against.
:func:`prebuilt` makes wheels from it.
CMake builds all distributions in one folder, which the unit tests in C++ use too.
The Makefile runs this file, which therefore needs only the standard library, CMake and torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "native"
_MODULES = ROOT / "build" / "cpp" / "release" / "modules"


def distributions() -> list[Path]:
    """Return the folders of the distributions with C++."""
    return sorted(path.parent for path in ROOT.glob("p*/*/CMakeLists.txt"))


def compiled(*folders: Path) -> list[Path]:
    """Return a folder with the extensions of each distribution; compile those that are missing."""
    kept = {folder: KEPT / f"{folder.name}-{_hash(folder)}" for folder in folders}
    if all(place.exists() for place in kept.values()):
        return [*kept.values()]
    KEPT.mkdir(parents=True, exist_ok=True)
    with Path(KEPT, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time
        missing = [folder for folder in folders if not kept[folder].exists()]
        if missing:
            _build(missing)
        for folder in missing:
            (package,) = (path.parent.name for path in folder.glob("src/*/__init__.py"))
            with tempfile.TemporaryDirectory(dir=KEPT) as made:
                shutil.copytree(_MODULES / package, Path(made, "new", package))
                Path(made, "new").rename(kept[folder])
    return [*kept.values()]


def _build(folders: Sequence[Path]) -> None:
    names = [str(folder.relative_to(ROOT)) for folder in folders]
    print(f"==> compiling {' '.join(names)}", file=sys.stderr, flush=True)
    shutil.rmtree(_MODULES, ignore_errors=True)  # extensions for another Python
    _run_quietly(
        # Fresh, because CMake keeps the compiler and the flags of the first run.
        [
            *("cmake", "--fresh", "-Wno-deprecated", "--preset", "release"),
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
    )
    _run_quietly(
        [
            "cmake",
            "--build",
            "--preset",
            "release",
            *_processes(),
            "--target",
            *(f"{name}/all" for name in names),
        ]
    )


def _processes() -> list[str]:
    return ["--parallel", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []


def _run_quietly(command: Sequence[str]) -> None:
    """Run a command of the build; show its output if it fails or has a warning of the compiler."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
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
    """Yield environment variables with which wheels get the compiled extensions."""
    with tempfile.TemporaryDirectory() as place:
        for folder in compiled(*folders):
            shutil.copytree(folder, place, dirs_exist_ok=True)
        yield {"SKBUILD_CMAKE_DEFINE": f"RPC_BACKENDS_PREBUILT={place}"}


def inputs(folder: Path) -> list[Path]:
    """Return the files that the extensions of a distribution are compiled from, headers included."""
    places = [folder / "csrc", *ROOT.glob("p*/*/src/*/include"), *ROOT.glob("p*/*/src/*/cmake")]
    build = [ROOT / "CMakeLists.txt", ROOT / "CMakePresets.json", folder / "CMakeLists.txt"]
    files = (path for place in places for path in place.rglob("*") if path.is_file())
    return sorted({*build, *folder.glob("torch.cmake"), *files})


def _hash(folder: Path) -> str:
    used = ["pybind11"]
    if (folder / "torch.cmake").exists():  # only the agents are compiled for a torch
        used.append("torch")
    if folder.name == "ucx":
        used.append("libucx-cu12")
    versions = " ".join(metadata.version(name) for name in used)
    platform = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
    flags = " ".join(os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "LDFLAGS"))
    command = shlex.split(os.environ.get("CXX") or "c++")  # it may begin with ccache
    # Without a compiler, CMake says what is missing.
    installed = shutil.which(command[0]) is not None
    compiler = subprocess.check_output([*command, "--version"], text=True) if installed else ""
    digest = hashlib.sha256("\0".join((versions, platform, flags, compiler)).encode())
    for source in inputs(folder):
        digest.update(f"\n{source.relative_to(ROOT)}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def main(arguments: Iterable[str]) -> None:
    """Compile all extensions, then run the given command with their `prebuilt`.

    :param arguments: the command; before it may be ``--only FOLDERS --``, to compile only these.
    """
    folders, command = distributions(), list(arguments)
    if command[:1] == ["--only"]:
        end = command.index("--")
        folders, command = [ROOT / name for name in command[1:end]], command[end + 1 :]
    compiled(*folders)
    if command:
        with prebuilt(*folders) as variables:
            subprocess.run(command, env={**os.environ, **variables}, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
