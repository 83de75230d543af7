"""What compilations need of torch: its headers, for each minor version, without installing it.

The libraries of torch are not needed either: an extension may have undefined symbols, so it is linked to
empty libraries of the same names. Tests import each extension with the real torch.

``build/torch`` has a folder for each wheel of torch, which looks to CMake like an installed torch. A
wheel has up to 800 MB, and is deleted as soon as its headers are unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

#: The libraries of torch that the extension is linked to.
_LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python")
_CONFIG = "share/cmake/Torch/TorchConfig.cmake"
_INTERNALS = re.compile(rb"__pybind11_internals_v\w+?__")
#: torch 2.6 was also published with the new std::string: for Arm on the index, for x86 only elsewhere.
#: This is the name in the one for Arm.
_INTERNALS_OF_NEW = b"__pybind11_internals_v4_gcc_libstdcpp_cxxabi1016__"
#: Fetching is tried so many times, because a registry may drop a connection.
_TRIES = 3


@dataclass(frozen=True, order=True)
class Headers:
    """What a compilation needs of one torch.

    :ivar minor: for example ``(2, 13)``.
    :ivar new_strings: whether ``std::string`` has the layout of C++11.
    :ivar folder: looks like the folder of an installed torch.
    :ivar wheel: the wheel that they are from.
    :ivar digest: the wheel's SHA-256.
    """

    minor: tuple[int, int]
    new_strings: bool
    folder: Path
    wheel: str
    digest: str

    @property
    def name(self) -> str:
        """The name of the folder with the build for this torch."""
        major, minor = self.minor
        return f"torch-{major}.{minor}{'' if self.new_strings else '-old-strings'}"


def headers_of(version: Version, python: Version, kept: Path) -> list[Headers]:
    """Return the headers of a version of torch, for each layout of ``std::string``; fetch them once.

    The wheels for all versions of Python have the same headers, so one wheel is fetched.

    :param python: a version of Python that torch has a wheel for.
    :param kept: the folder that keeps headers.
    :raises RuntimeError: pip cannot fetch the wheel.
    """
    name = f"{version}-{platform.machine()}"
    folder = kept / name
    if not (folder / "wheel.json").exists():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as made:
            _unpack(_fetch(version, python, Path(made)), Path(made, "new"))
            shutil.rmtree(folder, ignore_errors=True)
            Path(made, "new").rename(folder)
    has_new = "_GLIBCXX_USE_CXX11_ABI=0" not in (folder / _CONFIG).read_text()
    headers = [_headers(folder, has_new)]
    if not has_new:
        headers.append(_headers(_with_new_strings(folder), True))
    return headers


def _headers(folder: Path, new_strings: bool) -> Headers:
    about = json.loads((folder / "wheel.json").read_text())
    major, minor = about["minor"]
    return Headers((major, minor), new_strings, folder, about["wheel"], about["sha256"])


def _fetch(version: Version, python: Version, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--python-version", str(python)]
    command += ["--dest", str(into), f"torch=={version}"]
    # Constraints are for environments, and nothing is installed here.
    environ = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    for _ in range(_TRIES):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        wheels = list(into.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
    raise RuntimeError(f"pip cannot fetch torch {version} for Python {python}:\n{done.stderr}")


def _unpack(wheel: Path, into: Path) -> None:
    """Unpack what a compilation reads, and delete the wheel."""
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("torch/include/", "torch/version.py", f"torch/{_CONFIG}")
        for member in archive.infolist():
            if member.filename.startswith(wanted) and not member.is_dir():
                member.filename = member.filename.removeprefix("torch/")
                archive.extract(member, into)
        internals = _INTERNALS.search(archive.read("torch/lib/libtorch_python.so"))
    name = wheel.name
    wheel.unlink()
    if internals is None:
        raise RuntimeError(f"libtorch_python.so of {name} does not name pybind11's internals")
    _make_libraries(into / "lib", internals[0])
    minor = Version(name.split("-")[1]).release[:2]
    about = {"wheel": name, "sha256": digest, "minor": minor}
    (into / "wheel.json").write_text(json.dumps(about))


def _make_libraries(folder: Path, internals: bytes) -> None:
    """Make libraries with the names of torch's; CMake reads the name of pybind11's internals from one."""
    folder.mkdir()
    for name in _LIBRARIES:
        text = internals.decode() if name == "torch_python" else ""
        source = f'__attribute__((used)) static const char kInternals[] = "{text}";\n'
        file = f"lib{name}.so"
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{file}", "-x", "c", "-", "-o", file]
        subprocess.run(command, cwd=folder, input=source, text=True, check=True)


def _with_new_strings(folder: Path) -> Path:
    """Make a folder with the same headers for a build with the new ``std::string``."""
    made = folder.with_name(f"{folder.name}-new-strings")
    if not (made / "wheel.json").exists():
        shutil.rmtree(made, ignore_errors=True)
        (made / _CONFIG).parent.mkdir(parents=True)
        (made / _CONFIG).write_text("")
        for name in ("include", "version.py"):
            (made / name).symlink_to(Path("..", folder.name, name))
        _make_libraries(made / "lib", _INTERNALS_OF_NEW)
        shutil.copy(folder / "wheel.json", made)
    return made


def named(versions: Iterable[Version], only: str) -> list[Version]:
    """Return the versions that ``only`` names, for example ``2.9 2.13``; all if it is empty.

    :raises ValueError: a word names no version.
    """
    known = {f"{version.major}.{version.minor}": version for version in versions}
    unknown = [word for word in only.split() if word not in known]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no supported torch. Supported are {', '.join(known)}.")
    return [known[word] for word in only.split() or known]
