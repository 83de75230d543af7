"""``rpc-backends build-agents`` compiles the agents for the installed torch, into the user's cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_agents import _C
from rpc_backends_agents.installed_torch import Torch

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent


def rpc_backends(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "rpc-backends", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_nothing_is_compiled_if_the_package_has_a_build(cache: Path) -> None:
    ended = rpc_backends("build-agents", "--json", XDG_CACHE_HOME=str(cache))

    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["path"] == _C.__file__
    assert (report["origin"], report["compiled"]) == ("package", False)
    assert not cache.exists()


def test_a_missing_compiler_is_named(cache: Path, tmp_path: Path) -> None:
    # The PATH has nothing; CMake is beside the interpreter.
    ended = rpc_backends(
        *("build-agents", "--force", "--json"),
        XDG_CACHE_HOME=str(cache),
        PATH=str(tmp_path),
        CXX="",
    )

    assert ended.returncode == 1
    assert "Error: there is no C++ compiler 'c++' here." in ended.stderr
    assert "apt install g++" in ended.stderr
    assert ended.stderr == f"Error: {json.loads(ended.stdout)['error']}\n"
    assert "Traceback" not in ended.stderr
    assert not (cache / "rpc-backends").exists()


def test_a_failed_compilation_shows_the_compilers_output(cache: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "broken-compiler"
    compiler.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 1\n")
    compiler.chmod(0o755)

    ended = rpc_backends("build-agents", "--force", XDG_CACHE_HOME=str(cache), CXX=str(compiler))

    assert ended.returncode == 1
    assert "Error: the compilation failed (cmake):" in ended.stderr
    assert "this compiler is broken" in ended.stderr
    assert list(cache.rglob("*")) == []


def test_a_cache_that_others_can_write_to_is_refused(cache: Path) -> None:
    (cache / "rpc-backends").mkdir(parents=True)
    (cache / "rpc-backends").chmod(0o777)

    ended = rpc_backends("build-agents", "--force", XDG_CACHE_HOME=str(cache))

    assert ended.returncode == 1
    assert f"other users can write to {cache / 'rpc-backends'}" in ended.stderr


def test_a_cache_that_cannot_be_made_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    ended = rpc_backends("build-agents", "--force", XDG_CACHE_HOME=str(tmp_path / "file"))

    assert ended.returncode == 1
    assert "Error: the compiled file cannot be kept: " in ended.stderr
    assert "Set XDG_CACHE_HOME to a folder of your own" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_compiler_and_leaves_no_file(
    number: signal.Signals, cache: Path, tmp_path: Path
) -> None:
    compiler, running = tmp_path / "compiler", tmp_path / "running"
    os.mkfifo(running)
    compiler.write_text(f"#!/bin/sh\nexec 3> {running}\necho here >&3\nexec sleep 600\n")
    compiler.chmod(0o755)
    process = subprocess.Popen(
        # A job in the background ignores SIGINT.
        ["env", "--default-signal=INT", BIN / "rpc-backends", "build-agents", "--force"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "CXX": str(compiler)},
        stderr=subprocess.DEVNULL,
    )
    with running.open() as output:
        assert output.readline() == "here\n"

        process.send_signal(number)

        assert process.wait(60) != 0
        assert output.read() == ""  # the end: the compiler has ended, too
    assert not (cache / "rpc-backends").exists()


@pytest.mark.thorough  # it compiles the agents
def test_the_compiled_build_is_used_from_then_on(cache: Path) -> None:
    ended = rpc_backends("build-agents", "--force", "--json", XDG_CACHE_HOME=str(cache))

    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["origin"], report["compiled"]) == ("cache", True)
    assert report["torch"] == Torch.installed().version
    assert Path(report["path"]).is_relative_to(cache)
    kept = (cache / "rpc-backends").rglob("*")  # ccache may be beside it
    assert [str(path) for path in kept if path.is_file()] == [report["path"]]
    program = "from rpc_backends_agents import _C; print(_C.__file__)"
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    loaded = subprocess.check_output([sys.executable, "-c", program], env=environ, text=True)
    assert loaded.strip() == report["path"]
