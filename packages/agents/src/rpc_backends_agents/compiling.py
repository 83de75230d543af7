"""Compiles the extension ``_C`` from the sources in the package, for the installed torch."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rpc_backends_agents import sources
from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.loading import FILE

#: What CMake calls the extension.
_TARGET = "agents_module"
#: How ninja and make show how far they are.
_STEP = re.compile(r"\[\s*(\d+)(?:/(\d+)|%)\]")
#: What the CMakeLists.txt needs.
_OLDEST_CMAKE = (3, 26)
#: How many lines of a failed command's output are shown.
_SHOWN = 40
_CHECK = """\
import sys
from pathlib import Path
from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.torch_builds import Build, load_build
torch = Torch.installed()
load_build("_C", Build(Path(sys.argv[1]), torch.version, torch.new_strings, "cache"), torch)
"""


class CompilationError(Exception):
    """A build cannot be compiled; the text says why, and what to do."""


@dataclass(frozen=True)
class Tools:
    """The programs that compile.

    :ivar ninja: None if it is not installed; CMake then uses make.
    """

    cmake: str
    compiler: str
    ninja: str | None

    @classmethod
    def of_this_machine(cls) -> Tools:
        """Find the programs beside the Python interpreter, where pip installs them, or in ``PATH``.

        :raises CompilationError: one is missing or too old; the text says how to install it.
        """
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        wanted = os.environ.get("CXX") or "c++"
        compiler = shutil.which(wanted.split()[0], path=path)
        if compiler is None:
            raise CompilationError(
                f"there is no C++ compiler {wanted!r} here. Install one (Debian and Ubuntu: apt install "
                "g++; Fedora: dnf install gcc-c++), or set CXX to its path."
            )
        cmake = shutil.which("cmake", path=path)
        ninja = shutil.which("ninja", path=path)
        if cmake is None or (ninja is None and shutil.which("make", path=path) is None):
            lacking = "cmake" if cmake is None else "ninja or make"
            raise CompilationError(
                f"there is no {lacking} here. Install it: pip install cmake ninja"
            )
        version = _cmake_version(cmake)
        if version < _OLDEST_CMAKE:
            wanted, here = (".".join(map(str, numbers)) for numbers in (_OLDEST_CMAKE, version))
            raise CompilationError(
                f"{cmake} is CMake {here}, and {wanted} or newer is needed. Install it: pip install "
                "cmake ninja"
            )
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            python = ".".join(map(str, sys.version_info[:2]))
            raise CompilationError(
                f"the headers of Python {python} are missing: there is no {header}. Debian and Ubuntu: "
                f"apt install python{python}-dev"
            )
        return cls(cmake, compiler, ninja)


def _cmake_version(cmake: str) -> tuple[int, ...]:
    """Return the version of CMake; zeros if it does not say."""
    done = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def compile_build(torch: Torch, folder: Path, tools: Tools, report: Callable[[str], None]) -> Path:
    """Compile ``_C`` for the installed torch, and return its file. An exception leaves no file.

    :param torch: the installed torch.
    :param folder: where to put the file.
    :param report: gets a line for each step.
    :raises CompilationError: a program failed; the text has the end of its output.
    """
    report(f"{torch}, {tools.compiler}")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        configure = [tools.cmake, "-S", str(sources.folder()), "-B", made]
        configure += ["-G", "Ninja" if tools.ninja else "Unix Makefiles"]
        if tools.ninja:
            configure.append(f"-DCMAKE_MAKE_PROGRAM={tools.ninja}")
        variables = {
            "CMAKE_BUILD_TYPE": "Release",
            "Python_EXECUTABLE": sys.executable,
            "AGENTS_FOR_TORCH_ALONE": "ON",
        }
        report("configuring")
        _run([*configure, *(f"-D{name}={value}" for name, value in variables.items())], report)
        jobs = str(len(os.sched_getaffinity(0)))
        _run([tools.cmake, "--build", made, "--target", _TARGET, "--parallel", jobs], report)
        (compiled,) = Path(made).rglob(FILE)
        _run([sys.executable, "-c", _CHECK, str(compiled)], report)
        compiled.chmod(0o755)  # only its owner can write to it
        return compiled.replace(folder / FILE)


def _run(command: list[str], report: Callable[[str], None]) -> None:
    """Run a command; report how far it is, if it shows that. An exception ends it and its children."""
    output: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                output.append(line)
                if step := _STEP.match(line):
                    report(
                        f"compiling: {step[1]} of {step[2]}"
                        if step[2]
                        else f"compiling: {step[1]} %"
                    )
        except BaseException:  # a signal to this process
            # The process has not been waited for, so the id is its own.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        shown = "".join(output[-_SHOWN:]).rstrip()
        raise CompilationError(f"the compilation failed ({Path(command[0]).name}):\n{shown}")
