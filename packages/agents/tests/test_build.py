"""How our extensions are built: the agents against torch, all others without torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_agents import _C

ROOT = Path(__file__).parents[3]
#: In the commands that compile the agents for a torch.
OF_TORCH = "CMakeFiles/agents_module"
FOLDERS = ("packages/agents", "plugins/faults", "plugins/ucx", "plugins/zeromq")


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


def compile_commands(folder: str, into: Path, **variables: str) -> list[str]:
    """Return the commands that compile a package."""
    done = configure(folder, into, **variables)
    assert done.returncode == 0, done.stderr
    commands = [
        entry["command"] for entry in json.loads((into / "compile_commands.json").read_text())
    ]
    assert commands
    return commands


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("abi", "config"), [(0, 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n'), (1, "")]
)
def test_the_agents_are_compiled_with_the_layout_of_torch(
    abi: int, config: str, tmp_path: Path
) -> None:
    torch = a_torch(tmp_path / "torch", config)
    commands = compile_commands(
        "packages/agents", tmp_path / "build", RPC_BACKENDS_TORCH=str(torch)
    )
    of_torch = [command for command in commands if OF_TORCH in command]
    assert of_torch
    for command in of_torch:
        assert f"-D_GLIBCXX_USE_CXX11_ABI={abi} " in command
        assert "cxxabi1011" in command


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_all_other_extensions_are_compiled_without_torch(folder: str, tmp_path: Path) -> None:
    torch = a_torch(tmp_path / "torch", "")
    commands = compile_commands(folder, tmp_path / "build", RPC_BACKENDS_TORCH=str(torch))
    others = [command for command in commands if OF_TORCH not in command]
    assert others
    for command in others:
        assert str(torch) not in command
        assert "_GLIBCXX_USE_CXX11_ABI" not in command


@pytest.mark.parametrize(
    "module",
    [
        "rpc_backends_agents._native_transport",
        "rpc_backend_zeromq._native",
        "rpc_backend_ucx._native",
        "rpc_backends_faults._native",
    ],
)
def test_an_extension_without_torch_needs_no_library_of_it(module: str) -> None:
    file = extension(module)
    assert torch_libraries(file) == []
    assert torch_symbols(file) == []


def test_the_agents_need_libraries_of_torch() -> None:
    file = _C.__file__
    assert "libtorch_cpu.so" in torch_libraries(file)
    assert torch_symbols(file)


def extension(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def torch_libraries(file: str) -> list[str]:
    """Return the libraries of torch that the loader opens for an extension."""
    listing = subprocess.check_output(["readelf", "-d", file], text=True)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
    return [name for name in needed if re.match(r"libtorch|libc10", name)]


def torch_symbols(file: str) -> list[str]:
    """Return the undefined symbols of an extension that are of torch."""
    listing = subprocess.check_output(["readelf", "-sW", file], text=True)
    return [
        name for name in re.findall(r" UND (\S+)", listing) if re.search(r"5torch|3c10|2at", name)
    ]


@pytest.mark.slow
def test_a_build_without_torch_ends_with_the_reason(tmp_path: Path) -> None:
    bare = Path(os.path.realpath(sys.executable))  # of this environment, without its packages
    done = configure("packages/agents", tmp_path, Python_EXECUTABLE=str(bare))
    assert done.returncode == 1
    text = " ".join(done.stderr.split())
    assert f"error: torch is not installed for {bare}" in text


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
