"""CMake, which builds the unit tests, compiles the files of the wheels in the way setup.py does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from structure.imports import ROOT

pytestmark = pytest.mark.slow  # CMake finds the compiler and torch

#: The targets that make the extensions of each folder with C++.
TARGETS = {
    "packages/agents": {"agents_module", "agents_native_transport"},
    "plugins/faults": {"faults", "faults_module"},
    "plugins/ucx": {"ucx", "ucx_module"},
    "plugins/zeromq": {"zeromq", "zeromq_module"},
}
_PRINT_EXTENSIONS = """
import json
import setuptools
from distutils.core import run_setup
extensions = run_setup("setup.py", ["--name"], stop_after="init").ext_modules
print(json.dumps([vars(extension) for extension in extensions], default=str))
"""


class Command(NamedTuple):
    """A command of the compiler, from compile_commands.json."""

    target: str
    file: Path
    words: list[str]


@cache
def commands() -> list[Command]:
    """Return the commands with which CMake would compile the files of this repository."""
    folder = ROOT / "build/cpp/structure"
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder)]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        configure, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [
        Command(
            entry["output"].partition("CMakeFiles/")[2].partition(".dir/")[0],
            Path(entry["file"]),
            shlex.split(entry["command"]),
        )
        for entry in json.loads((folder / "compile_commands.json").read_text())
    ]


@cache
def extensions(folder: str) -> list[dict[str, Any]]:
    """Return the extensions that setup.py declares."""
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_EXTENSIONS],
        cwd=ROOT / folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    declared: list[dict[str, Any]] = json.loads(done.stdout)
    return declared


@pytest.mark.parametrize("folder", TARGETS)
def test_cmake_compiles_the_files_of_the_wheels(folder: str) -> None:
    declared = {
        ROOT / folder / source
        for extension in extensions(folder)
        for source in extension["sources"]
    }
    assert {command.file for command in commands() if command.target in TARGETS[folder]} == declared


@pytest.mark.parametrize("folder", TARGETS)
def test_cmake_compiles_with_the_flags_of_the_wheels(folder: str) -> None:
    for extension in extensions(folder):
        files = {ROOT / folder / source for source in extension["sources"]}
        flags = [flag for flag in extension["extra_compile_args"] if flag.startswith("-")]
        macros = [f"-D{name}={value}" for name, value in extension["define_macros"]]
        for command in commands():
            if command.target in TARGETS[folder] and command.file in files:
                missing = {*flags, *macros} - set(command.words)
                assert not missing, f"{command.file}: {missing}"


def test_every_file_has_a_command() -> None:
    """Editors and clang-tidy read them."""
    sources = {
        file
        for place in ("packages", "plugins")
        for file in (ROOT / place).glob("*/csrc/**/*.cpp")
        if "bench" not in file.parts
    }
    assert not sources - {command.file for command in commands()}
