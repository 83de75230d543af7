"""Which build of the C++ is loaded: by torch's version and layout of std::string."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import rpc_backends_agents
from rpc_backends_agents import _C, build_cache, torch_builds
from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.loading import FILE
from rpc_backends_agents.torch_builds import VARIABLE, Build, choose

BUILDS = ("torch-2.6", "torch-2.6-old-strings", "torch-2.9", "torch-2.13")
#: An extension that needs a symbol which no library has.
SOURCE = """
extern void *symbol_of_another_torch(void);
void *PyInit__C(void) { return symbol_of_another_torch(); }
"""


def a_torch(version: str, *, new_strings: bool = True) -> Torch:
    return Torch(version, "0123456789abcdef", new_strings)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a package's folder of builds."""
    place = tmp_path / "package" / "builds"
    for name in BUILDS:
        (place / name).mkdir(parents=True)
        (place / name / FILE).touch()
    monkeypatch.setattr(torch_builds, "_places", lambda: [place])
    return place


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which the user's cache is a folder of this test."""
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def cache_a_build(torch: Torch, environ: dict[str, str]) -> Path:
    path = build_cache.make_folder(torch, environ) / FILE
    path.write_bytes(bytes(64))  # the size of the head of a library
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cu130", "2.13.0.post1", "2.13.0+cpu"])
def test_a_release_uses_the_build_for_its_minor_version(
    version: str, package: Path, environ: dict[str, str]
) -> None:
    build = choose(a_torch(version), environ)

    assert build == Build(package / "torch-2.13" / FILE, "2.13", True, "package")


@pytest.mark.parametrize(
    ("new_strings", "folder"), [(True, "torch-2.6"), (False, "torch-2.6-old-strings")]
)
def test_the_layout_of_torchs_strings_decides(
    new_strings: bool, folder: str, package: Path, environ: dict[str, str]
) -> None:
    build = choose(a_torch("2.6.0+cu124", new_strings=new_strings), environ)

    assert build.path == package / folder / FILE


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("unknown", "named"),
    [
        (a_torch("2.14.0"), "torch 2.14.0."),
        (a_torch("2.16.0.dev20261101+cpu"), "torch 2.16.0.dev20261101+cpu."),
        (a_torch("2.13.0a0+nv25.9"), "torch 2.13.0a0+nv25.9."),
        (a_torch("2.13.0", new_strings=False), "torch 2.13.0 (old std::string)."),
    ],
    ids=["newer", "nightly", "vendor's", "other layout"],
)
def test_an_unknown_torch_is_refused_with_the_command(
    unknown: Torch, named: str, environ: dict[str, str]
) -> None:
    with pytest.raises(ImportError) as caught:
        choose(unknown, environ)

    text = str(caught.value)
    assert f"rpc-backends-agents has no build for {named}" in text
    assert "It has builds for torch: 2.6 (old std::string), 2.6, 2.9, 2.13." in text
    assert "which needs a C++ compiler: rpc-backends build-agents." in text
    assert f"{VARIABLE}=1" in text


@pytest.mark.usefixtures("package")
def test_a_torch_that_is_too_old_is_to_be_upgraded(environ: dict[str, str]) -> None:
    with pytest.raises(
        ImportError,
        match=r"no build for torch 2\.5\.1\. .* 2\.13\. .*Install one of these versions",
    ):
        choose(a_torch("2.5.1"), environ | {VARIABLE: "1"})


@pytest.mark.parametrize(
    ("version", "folder"),
    [("2.16.0.dev20261101", "torch-2.13"), ("2.9.0a0+nv25.9", "torch-2.9"), ("3.0", "torch-2.13")],
)
def test_the_variable_lets_any_torch_use_the_nearest_build(
    version: str, folder: str, package: Path, environ: dict[str, str]
) -> None:
    build = choose(a_torch(version), environ | {VARIABLE: "yes"})

    assert build.path == package / folder / FILE


@pytest.mark.usefixtures("package")
def test_an_invalid_value_of_the_variable_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ImportError, match=rf"{VARIABLE}='often' is neither true nor false"):
        choose(a_torch("2.99"), environ | {VARIABLE: "often"})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("version", ["2.13.0", "2.16.0.dev20261101"])
def test_the_users_own_build_goes_first(version: str, environ: dict[str, str]) -> None:
    path = cache_a_build(a_torch(version), environ)

    build = choose(a_torch(version), environ)

    assert build == Build(path, version, True, "cache")


@pytest.mark.usefixtures("package")
def test_a_build_for_another_commit_of_torch_is_not_used(environ: dict[str, str]) -> None:
    cache_a_build(Torch("2.16.0a0", "fedcba9876543210", True), environ)

    with pytest.raises(ImportError, match="has no build"):
        choose(a_torch("2.16.0a0"), environ)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("place", ["file", "folder", "cache"])
def test_a_build_that_others_can_write_to_is_refused(place: str, environ: dict[str, str]) -> None:
    path = cache_a_build(a_torch("2.14.0"), environ)
    cache = Path(environ["XDG_CACHE_HOME"])
    writable = {"file": path, "folder": path.parent, "cache": cache}[place]
    writable.chmod(0o777)

    with pytest.raises(ImportError, match="does not load") as caught:
        choose(a_torch("2.14.0"), environ)

    assert f"user can write to {writable}" in str(caught.value).replace("users", "user")
    assert "rpc-backends build-agents" in str(caught.value)


@pytest.mark.usefixtures("package")
def test_a_build_of_another_user_is_refused(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache_a_build(a_torch("2.14.0"), environ)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:  # only root can give files away, so this process becomes another user
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(ImportError, match=r"another user \(id \d+\) owns"):
        choose(a_torch("2.14.0"), environ)


def test_folders_of_the_cache_are_private(environ: dict[str, str]) -> None:
    made = build_cache.make_folder(a_torch("2.14.0"), environ)

    top = build_cache.root(environ)
    assert top is not None
    folders = [place for place in (made, *made.parents) if place.is_relative_to(top)]
    assert [place.stat().st_mode & 0o777 for place in folders] == [0o700] * len(folders)


@pytest.mark.usefixtures("package")
def test_a_missing_symbol_is_named(tmp_path: Path) -> None:
    path = tmp_path / FILE
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=SOURCE, text=True, check=True)

    with pytest.raises(ImportError) as caught:
        torch_builds.load_build("_C", Build(path, "2.15", True, "package"), a_torch("2.16.0"))

    text = str(caught.value)
    assert "cannot load its build for torch 2.15 with torch 2.16.0: " in text
    assert "symbol_of_another_torch" in text
    assert text.endswith("which needs a C++ compiler: rpc-backends build-agents")


@pytest.mark.usefixtures("package")
def test_a_build_whose_end_is_missing_is_refused(environ: dict[str, str]) -> None:
    path = cache_a_build(a_torch("2.14.0"), environ)
    path.write_bytes(Path(_C.__file__).read_bytes())
    assert choose(a_torch("2.14.0"), environ).path == path
    os.truncate(path, path.stat().st_size // 2)

    with pytest.raises(ImportError, match=r"end of the file is missing.*build-agents --force"):
        choose(a_torch("2.14.0"), environ)


def imported(program: str, **env: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.check_output(command, env={**os.environ, **env}, text=True).strip()


def test_a_released_torch_needs_one_module_to_load_its_build(tmp_path: Path) -> None:
    program = """
import sys
from rpc_backends_agents import _C
print([name for name in sys.modules if "torch_builds" in name or "build_cache" in name])
"""
    assert imported(program, XDG_CACHE_HOME=str(tmp_path)) == "[]"


def test_a_backend_on_an_unknown_torch_names_only_the_command(tmp_path: Path) -> None:
    program = """
import torch
torch.__version__ = "2.99.0"
from torch.distributed import rpc
import rpc_backends_core
try:
    rpc.init_rpc("a", backend="ZEROMQ", rank=0, world_size=1)
except rpc_backends_core.RpcBackendsError as error:
    print(error)
"""
    text = imported(program, XDG_CACHE_HOME=str(tmp_path))

    assert "rpc-backends-agents has no build for torch 2.99.0. It has builds for torch: " in text
    assert "which needs a C++ compiler: rpc-backends build-agents." in text
    assert "reinstall" not in text


def test_the_module_is_the_build_for_the_installed_torch() -> None:
    assert Path(_C.__file__).parent.name == Torch.installed().folder
    assert Path(_C.__file__).name == f"_C.{sysconfig.get_config_var('SOABI')}.so"
    assert _C.TransportAgent.__module__ == "rpc_backends_agents._C"
    assert rpc_backends_agents.TransportAgent is _C.TransportAgent
    assert torch.__version__ == Torch.installed().version
