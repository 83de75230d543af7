"""How our extensions are built: with torch's layout of std::string, and only if torch is installed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import setuptools
import torch

import rpc_backends_agents

ROOT = Path(__file__).parents[3]
FOLDERS = ("packages/agents", "plugins/faults", "plugins/ucx", "plugins/zeromq")
SOURCE = """
#include <rpc_backends_agents/interceptor.h>
#include <rpc_backends_agents/transport.h>

#include <cstdio>

int main() {
  std::puts(rpc_backends::kTransportCapsule);
  std::puts(rpc_backends::kInterceptorCapsule);
}
"""


@pytest.mark.parametrize(("abi", "end"), [(1, ""), (0, ".old-strings")])
def test_the_names_of_capsules_show_the_layout(abi: int, end: str, tmp_path: Path) -> None:
    (tmp_path / "names.cpp").write_text(SOURCE)
    program = tmp_path / "names"
    options = (
        "-std=c++17",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{rpc_backends_agents.include_dir()}",
    )
    subprocess.run(["c++", *options, "-o", program, tmp_path / "names.cpp"], check=True)
    names = subprocess.check_output([program], text=True).split()
    assert names == [f"rpc_backends.Transport.3{end}", f"rpc_backends.Interceptor.2{end}"]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("abi", [False, True])
def test_an_extension_is_compiled_with_the_layout_of_torch(
    folder: str, abi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the agents, this checks the extension that is built without torch's tools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compiled_with_cxx11_abi", lambda: abi)
    monkeypatch.setattr(setuptools, "setup", lambda **settings: given.update(settings))
    monkeypatch.chdir(ROOT / folder)

    runpy.run_path("setup.py")

    extension = given["ext_modules"][-1]
    assert ("_GLIBCXX_USE_CXX11_ABI", str(int(abi))) in extension.define_macros


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_build_without_torch_ends_with_the_reason(folder: str) -> None:
    code = "import runpy, sys; sys.modules.update(torch=None, pybind11=None); runpy.run_path('setup.py')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "torch" in line
    assert "pip install --no-build-isolation" in line
