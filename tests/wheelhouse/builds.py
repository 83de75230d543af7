"""Compiles the extension ``_C`` of rpc-backends-agents for each torch and Python, each once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from wheelhouse.torches import Headers, headers_of

#: Where builds lie in the wheel.
PLACE = Path("rpc_backends_agents", "builds")
_AGENTS = Path("packages", "agents")
#: A base folder of ccache changes paths before the flags of :func:`without_paths` see them.
UNMAPPED = {"CCACHE_BASEDIR": ""}
#: What CMake calls the extension.
_TARGET = "agents_module"


@dataclass(frozen=True)
class Build:
    """One compilation.

    :ivar python: an interpreter beside which cmake and ninja are installed.
    :ivar platform: the ending of its extensions, such as ``cpython-311-x86_64-linux-gnu``.
    """

    headers: Headers
    python: Path
    platform: str

    @classmethod
    def of(cls, headers: Headers, python: Path) -> Build:
        """Return the compilation for a torch and an interpreter."""
        code = "import sysconfig; print(sysconfig.get_config_var('SOABI'))"
        platform = subprocess.check_output([python, "-c", code], text=True).strip()
        return cls(headers, python, platform)

    def __str__(self) -> str:
        """Return for example ``torch-2.13, cpython-311-x86_64-linux-gnu``."""
        return f"{self.headers.name}, {self.platform}"


class Compiler:
    """Compiles from the sources in a clone, and keeps what it has compiled.

    :param sources: the clone.
    :param kept: the folder for headers and compiled files.
    :param say: gets a line for each step.
    """

    def __init__(self, sources: Path, kept: Path, say: Callable[[str], None]) -> None:
        self._sources = sources
        self._kept = kept
        self._say = say
        self._inputs = _hash_of(sources)
        self._compiler = compiler_version()

    def all(
        self, torches: Mapping[Version, Sequence[Version]], pythons: Mapping[Version, Path]
    ) -> dict[Path, dict[str, Path]]:
        """Return the file of each build by interpreter and by the name of its folder.

        As many compilations run at a time as there are cores; ``MAX_JOBS`` sets another number. The next
        torch is fetched meanwhile.

        :param torches: the versions of torch by the version of Python.
        :param pythons: the interpreter of each version of Python.
        :raises subprocess.CalledProcessError: a compilation failed; its output is on stderr.
        """
        cores = int(os.environ.get("MAX_JOBS", "0")) or len(os.sched_getaffinity(0))
        wanted: dict[Version, list[Version]] = {}
        for python, versions in torches.items():
            for version in versions:
                wanted.setdefault(version, []).append(python)
        files: dict[Path, dict[str, Path]] = {python: {} for python in pythons.values()}
        with ThreadPoolExecutor(cores) as compiling, ThreadPoolExecutor(1) as fetching:
            fetched = [
                (fetching.submit(self._fetch, version, for_pythons[0]), for_pythons)
                for version, for_pythons in sorted(wanted.items())
            ]
            started = []
            for future, for_pythons in fetched:
                for headers in future.result():
                    builds = [Build.of(headers, pythons[python]) for python in for_pythons]
                    started += [(build, compiling.submit(self.file, build)) for build in builds]
            for build, done in started:
                files[build.python][build.headers.name] = done.result()
        return files

    def _fetch(self, version: Version, python: Version) -> list[Headers]:
        started = time.monotonic()
        headers = headers_of(version, python, self._kept / "torch")
        self._say(f"headers of torch {version}: {time.monotonic() - started:.0f} s")
        return headers

    def file(self, build: Build) -> Path:
        """Return the compiled file; compile it if it is not kept."""
        folder = self._kept / "compiled" / self._key(build)
        file = folder / f"_C.{build.platform}.so"
        if file.exists():
            return file
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not file.exists():
                started = time.monotonic()
                self._compile(build, file)
                self._say(f"compiled for {build}: {time.monotonic() - started:.0f} s")
        return file

    def _compile(self, build: Build, file: Path) -> None:
        with tempfile.TemporaryDirectory(dir=file.parent) as made:
            variables = {
                "CMAKE_BUILD_TYPE": "Release",
                "Python_EXECUTABLE": build.python,
                "RPC_BACKENDS_TORCH": build.headers.folder,
                "AGENTS_FOR_TORCH_ALONE": "ON",
            }
            configure: list[str | Path] = [
                "cmake",
                "-G",
                "Ninja",
                "-S",
                self._sources / _AGENTS,
                "-B",
                made,
            ]
            self._run(build, [*configure, *(f"-D{key}={variables[key]}" for key in variables)])
            self._run(build, ["cmake", "--build", made, "--target", _TARGET, "--parallel", "1"])
            (compiled,) = Path(made).glob(f"modules/{PLACE}/{build.headers.name}/{file.name}")
            compiled.rename(file)

    def _run(self, build: Build, command: list[str | Path]) -> None:
        path = os.pathsep.join((str(build.python.parent), os.environ["PATH"]))
        flags = without_paths({**headers_as("torch", build.headers.folder), self._sources: ""})
        done = subprocess.run(
            command,
            env={**os.environ, **UNMAPPED, "PATH": path, "CXXFLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            self._say(f"the compilation for {build} failed:\n{done.stdout}")
        done.check_returncode()

    def _key(self, build: Build) -> str:
        digest = hashlib.sha256(self._compiler)
        for text in (self._inputs, build.headers.digest, build.headers.name, build.platform):
            digest.update(f"\n{text}".encode())
        for name in ("CXXFLAGS", "LDFLAGS"):
            digest.update(f"\n{os.environ.get(name, '')}".encode())
        return digest.hexdigest()[:16]


def compiler_version() -> bytes:
    """Return what the C++ compiler says of itself."""
    return subprocess.check_output([os.environ.get("CXX") or "c++", "--version"])


def headers_as(name: str, folder: Path) -> dict[Path, str]:
    """Return what replaces a folder of headers in the paths of files.

    A compiler follows links to system headers if that makes their paths shorter.
    """
    return {(folder / "include").resolve().parent: name, folder: name}


def without_paths(folders: Mapping[Path, str]) -> str:
    """Return flags of the compiler with which a result does not depend on where the sources lie.

    :param folders: what replaces each folder in the paths of files.
    """
    mapped = (f"-ffile-prefix-map={folder}={name or '.'}" for folder, name in folders.items())
    return " ".join((os.environ.get("CXXFLAGS", ""), *mapped)).strip()


def _hash_of(sources: Path) -> str:
    """Return a hash of the files that a compilation reads."""
    top = sources / _AGENTS
    files = [top / "CMakeLists.txt", *top.glob("*.cmake")]
    for place in (top / "csrc", *top.glob("src/*/include"), *top.glob("src/*/cmake")):
        files += (file for file in place.rglob("*") if file.is_file())
    digest = hashlib.sha256(Path(__file__).read_bytes())  # it has flags of the compiler
    for file in sorted(files):
        digest.update(f"\n{file.relative_to(top)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
