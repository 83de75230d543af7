"""How our extensions are built: with torch's layout of std::string, and only if torch is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def configure(folder: str, into: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Let CMake read the build of a package, without building it."""
    defined = {
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        **variables,
    }
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT / folder), "-B", str(into)]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        [*command, *(f"-D{name}={value}" for name, value in defined.items())],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def a_torch(folder: Path, config: str) -> Path:
    """Make a folder with what a build reads of torch before it compiles."""
    for name, text in {
        "version.py": "__version__ = '2.6.0'\n",
        "share/cmake/Torch/TorchConfig.cmake": config,
        "lib/libtorch_python.so": "__pybind11_internals_v5_gcc_libstdcpp_cxxabi1011__\n",
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True)  # each is in a folder of its own
        file.write_text(text)
    return folder


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


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("abi", "config"), [(0, 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n'), (1, "")]
)
def test_an_extension_is_compiled_with_the_layout_of_torch(
    folder: str, abi: int, config: str, tmp_path: Path
) -> None:
    torch = a_torch(tmp_path / "torch", config)
    done = configure(folder, tmp_path / "build", RPC_BACKENDS_TORCH=str(torch))
    assert done.returncode == 0, done.stderr
    commands = json.loads((tmp_path / "build/compile_commands.json").read_text())
    assert commands
    for entry in commands:
        assert f"-D_GLIBCXX_USE_CXX11_ABI={abi} " in entry["command"]
        if "agents_module.dir" in entry["command"]:
            assert "cxxabi1011" in entry["command"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_build_without_torch_ends_with_the_reason(folder: str, tmp_path: Path) -> None:
    bare = Path(os.path.realpath(sys.executable))  # of this environment, without its packages
    done = configure(folder, tmp_path, Python_EXECUTABLE=str(bare))
    assert done.returncode == 1
    text = " ".join(done.stderr.split())
    assert f"error: torch is not installed for {bare}" in text
    assert "pip install --no-build-isolation" in text


@pytest.mark.slow
def test_a_build_without_the_agents_ends_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text((ROOT / "plugins/zeromq/CMakeLists.txt").read_text())
    done = configure(str(folder), tmp_path / "build")
    assert done.returncode == 1
    text = " ".join(done.stderr.split())
    assert "error: rpc-backends-agents is not installed here" in text
    assert "pip install --no-build-isolation" in text
