"""CMake's compile_commands.json has every file, for editors and clang-tidy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structure.imports import ROOT


@pytest.mark.slow  # CMake finds the compiler and torch
def test_every_file_has_a_command() -> None:
    folder = ROOT / "build/cpp/structure"
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder)]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        configure, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    commands = json.loads((folder / "compile_commands.json").read_text())
    sources = {
        file for place in ("packages", "plugins") for file in (ROOT / place).glob("*/csrc/**/*.cpp")
    }
    assert sources
    assert not sources - {Path(entry["file"]) for entry in commands}
