"""The builder of wheels: what it keeps of torch, which builds it makes, and its index of files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from matrix import __main__ as matrix
from release import __main__ as release
from support.environments import clean_environ
from wheelhouse import files
from wheelhouse.builds import headers_as, without_paths
from wheelhouse.openssl import OpenSSL
from wheelhouse.torches import headers_of, named

PYTHON = Version(".".join(map(str, sys.version_info[:2])))
CONFIG = "share/cmake/Torch/TorchConfig.cmake"


def add_torch(folder: Path, version: str, config: str, internals: str) -> None:
    """Make a wheel with what the builder reads of torch, and with files that it does not read."""
    contents = {
        "torch/include/torch/extension.h": "",
        "torch/version.py": f"__version__ = '{version}+cpu'\n",
        f"torch/{CONFIG}": config,
        "torch/lib/libtorch_python.so": f"\0{internals}\0",
        "torch/lib/libtorch_cpu.so": "large",
        "torch/__init__.py": "",
        f"torch-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        ),
        f"torch-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"torch-{version}.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which pip finds the wheels of torch."""
    folder = tmp_path / "registry"
    folder.mkdir()
    add_torch(
        folder,
        "2.6.0",
        'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n',
        "__pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__",
    )
    add_torch(folder, "2.13.0", "", "__pybind11_internals_v11_system_libstdcpp_abi_1__")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("registry")
def test_only_what_a_compilation_reads_is_kept_of_torch(tmp_path: Path) -> None:
    (headers,) = headers_of(Version("2.13.0"), PYTHON, tmp_path / "kept")

    assert (headers.name, headers.minor, headers.new_strings) == ("torch-2.13", (2, 13), True)
    kept = {str(p.relative_to(headers.folder)) for p in headers.folder.rglob("*") if p.is_file()}
    libraries = {f"lib/lib{name}.so" for name in ("c10", "torch", "torch_cpu", "torch_python")}
    wanted = {"include/torch/extension.h", "version.py", CONFIG, "wheel.json"}
    assert kept == wanted | libraries
    assert (headers.folder / "lib/libtorch_cpu.so").read_bytes()[:4] == b"\x7fELF"
    assert list((tmp_path / "kept").rglob("*.whl")) == []


@pytest.mark.usefixtures("registry")
def test_a_torch_with_the_old_strings_gets_two_builds(tmp_path: Path) -> None:
    old, new = headers_of(Version("2.6.0"), PYTHON, tmp_path / "kept")

    assert [old.name, new.name] == ["torch-2.6-old-strings", "torch-2.6"]
    assert "_GLIBCXX_USE_CXX11_ABI=0" in (old.folder / CONFIG).read_text()
    assert "_GLIBCXX_USE_CXX11_ABI=0" not in (new.folder / CONFIG).read_text()
    assert (new.folder / "include/torch/extension.h").exists()
    assert b"cxxabi1011__" in (old.folder / "lib/libtorch_python.so").read_bytes()
    assert b"cxxabi1016__" in (new.folder / "lib/libtorch_python.so").read_bytes()


def test_a_torch_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    first = headers_of(Version("2.13.0"), PYTHON, tmp_path / "kept")
    for wheel in registry.iterdir():
        wheel.unlink()

    assert headers_of(Version("2.13.0"), PYTHON, tmp_path / "kept") == first


@pytest.mark.usefixtures("registry")
def test_a_torch_that_cannot_be_fetched_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"pip cannot fetch torch 2\.12\.0 for Python 3\."):
        headers_of(Version("2.12.0"), PYTHON, tmp_path / "kept")


@pytest.mark.parametrize(
    ("link", "target"),
    [("kept/torch-of-a-clone", "real"), ("kept/torch-of-a-clone/include", "real/include")],
    ids=["folder", "include"],
)
def test_a_compiled_file_does_not_name_the_folder_of_headers(
    link: str, target: str, tmp_path: Path
) -> None:
    headers = tmp_path / "kept/torch-of-a-clone"
    (tmp_path / "real/include").mkdir(parents=True)
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / link).symlink_to(tmp_path / target)
    (headers / "include/place.h").write_text("const char* place = __FILE__;\n")

    flags = without_paths(headers_as("torch", headers)).split()
    command = [
        "c++",
        "-c",
        "-xc++",
        "-",
        "-o",
        "compiled.o",
        f"-isystem{headers / 'include'}",
        *flags,
    ]
    subprocess.run(command, cwd=tmp_path, input="#include <place.h>\n", text=True, check=True)

    compiled = (tmp_path / "compiled.o").read_bytes()
    assert b"torch/include/place.h" in compiled
    assert str(tmp_path).encode() not in compiled


def test_only_published_versions_can_be_chosen() -> None:
    versions = [Version("2.9.1"), Version("2.13.0")]

    assert named(versions, "2.13") == [Version("2.13.0")]
    assert named(versions, "") == versions
    with pytest.raises(
        ValueError, match=r"'2\.5' is no supported torch\. Supported are 2\.9, 2\.13\."
    ):
        named(versions, "2.5")


def test_a_wheel_with_another_openssl_than_the_compiled_one_is_refused(tmp_path: Path) -> None:
    """CMake found the system's, for example."""
    wheel = tmp_path / "rpc_backend_zeromq-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rpc_backend_zeromq/_native.so", b"\0OpenSSL 3.0.19 27 Jan 2026\0")

    files._check_openssl(wheel, OpenSSL("system 3.0.19"))
    with pytest.raises(files.FilesError, match=r"contains OpenSSL 3\.0\.19, not 3\.5\.9$"):
        files._check_openssl(wheel, OpenSSL("0123", "3.5.9"))


def add_empty(folder: Path, name: str, *metadata: str) -> None:
    """Make a wheel without modules."""
    info = f"{name.replace('-', '_')}-1.0"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *metadata, ""]
    with zipfile.ZipFile(folder / f"{info}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}.dist-info/METADATA", "\n".join(lines))
        archive.writestr(f"{info}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}.dist-info/RECORD", "")


def test_a_folder_with_wheels_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "a-1-py3-none-any.whl").touch()
    monkeypatch.chdir(tmp_path)
    assert files.built_already("dist") == tmp_path / "dist"


@pytest.mark.parametrize("command", [matrix, release])
def test_a_folder_without_wheels_is_refused(
    command: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["command", "--dist", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"no wheel is in {tmp_path}" in error
    assert "make wheels" in error


def test_pip_installs_from_the_index_as_the_page_says(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    (tmp_path / "usual").mkdir()
    dist.mkdir()
    backends = ("zeromq", "ucx")
    extras = [f"Provides-Extra: {name}" for name in backends]
    extras += [f'Requires-Dist: rpc-backend-{name}; extra == "{name}"' for name in backends]
    add_empty(dist, "rpc-backends", "Requires-Dist: rpc-backends-cli", *extras)
    wanted = ["rpc-backends-cli", *(f"rpc-backend-{name}" for name in backends)]
    for name in wanted:
        add_empty(dist, name)
    files.make_index(dist)
    page = (Path(__file__).parents[2] / "docs/how-to/install.md").read_text()
    section = page.split("## Serve the packages from a folder\n")[1]
    command = re.findall(r"^\$ pip (install .*)$", section, re.MULTILINE)[0]

    more = f"--dry-run --quiet --report - --target {tmp_path}/target"
    done = subprocess.run(
        f"{sys.executable} -m pip {command} {more}",
        shell=True,
        cwd=tmp_path,
        # In place of the public index: one without packages.
        env=clean_environ(
            {"PIP_INDEX_URL": f"file://{tmp_path}/usual", "PIP_CONFIG_FILE": os.devnull}
        ),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    installed = {each["metadata"]["name"]: each for each in json.loads(done.stdout)["install"]}
    assert set(installed) == {"rpc-backends", *wanted}
    assert installed["rpc-backends"]["download_info"]["archive_info"]["hashes"]["sha256"]
