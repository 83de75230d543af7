"""What CMake compiles: compile_commands.json has all of it, and the cache of extensions depends on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structure.imports import ROOT
from support import native


@pytest.fixture(scope="module")
def commands() -> list[dict[str, str]]:
    """Return the compile commands of a build of all distributions."""
    folder = ROOT / "build/cpp/structure"
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder)]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        configure, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed: list[dict[str, str]] = json.loads((folder / "compile_commands.json").read_text())
    return listed


@pytest.mark.slow  # CMake finds the compiler and torch
def test_every_file_has_a_command(commands: list[dict[str, str]]) -> None:
    """Editors and clang-tidy need it."""
    sources = {
        file for place in ("packages", "plugins") for file in (ROOT / place).glob("*/csrc/**/*.cpp")
    }
    assert sources
    assert not sources - {Path(entry["file"]) for entry in commands}


@pytest.mark.slow
def test_an_extension_is_kept_under_all_files_that_it_is_compiled_from(
    commands: list[dict[str, str]],
) -> None:
    tests = [folder / "tests" for folder in (ROOT, *native.distributions())]
    compiled = set()
    for entry in commands:
        file = Path(entry["file"])
        if file.is_relative_to(ROOT / "build") or any(map(file.is_relative_to, tests)):
            continue
        if not file.is_relative_to(ROOT):  # GoogleTest
            continue
        compiled.add((ROOT.joinpath(*Path(entry["output"]).parts[:2]), file))

    assert {folder for folder, _ in compiled} == set(native.distributions())
    missed = [
        f"{folder.name}: {file.relative_to(ROOT)}"
        for folder, file in compiled
        if file not in native.inputs(folder)
    ]
    assert not missed


@pytest.mark.parametrize(
    "changed",
    [
        "plugins/ucx/csrc/a.cpp",
        "plugins/agents/src/agents/include/agents/a.cpp",
        "plugins/agents/src/agents/include/agents/openssl/a.h",
        "plugins/agents/src/agents/cmake/agents-config.cmake",
        "CMakePresets.json",
    ],
)
def test_a_changed_file_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(native, "ROOT", tmp_path)
    folder = tmp_path / "plugins/ucx"
    for name in ("CMakeLists.txt", "CMakePresets.json", "plugins/ucx/CMakeLists.txt", changed):
        Path(tmp_path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, name).write_text("1")
    before = native._hash(folder)

    Path(tmp_path, changed).write_text("2")

    assert native._hash(folder) != before
