"""Unix sockets: in a private folder, with a path that fits, and removed afterwards."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq import unix_sockets
from rpc_backend_zeromq.unix_sockets import Node, SocketFolder
from rpc_backends_agents.engine.errors import AddressError


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """Yield a folder with a short path, as a stand-in for /run/user/UID."""
    folder = Path("/tmp") / f"rpcz-test-{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder  # type: ignore[misc]
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def environ(runtime: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": "/nowhere"}


def bind(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(path)
    return bound


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_the_folder_is_private_to_its_user(runtime: Path) -> None:
    folder = SocketFolder(environ(runtime))

    path = Path(folder.socket).parent
    assert path.parent == runtime
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    folder.remove()


def test_each_worker_has_its_own_folder(runtime: Path) -> None:
    first, second = SocketFolder(environ(runtime)), SocketFolder(environ(runtime))

    assert first.socket != second.socket
    first.remove()
    second.remove()


def test_remove_leaves_no_file_and_no_descriptor(runtime: Path) -> None:
    before = open_files()
    folder = SocketFolder(environ(runtime))
    bind(folder.socket).close()

    folder.remove()
    folder.remove()

    assert open_files() == before
    assert list(runtime.iterdir()) == []


def test_without_a_runtime_folder_tmpdir_is_used(runtime: Path) -> None:
    for variables in (
        {"TMPDIR": str(runtime)},
        {"XDG_RUNTIME_DIR": "/nowhere", "TMPDIR": str(runtime)},
        {"XDG_RUNTIME_DIR": "relative", "TMPDIR": str(runtime)},
    ):
        folder = SocketFolder(variables)
        assert Path(folder.socket).parent.parent == runtime
        folder.remove()


def test_a_folder_with_too_long_a_path_is_skipped(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()

    folder = SocketFolder({"XDG_RUNTIME_DIR": str(deep), "TMPDIR": str(deep)})

    assert folder.socket.startswith("/tmp/")
    bind(folder.socket).close()
    folder.remove()


def test_a_path_of_the_longest_length_can_be_bound(tmp_path: Path) -> None:
    fixed = len("/rpc-zmq-12345678/s")
    wanted = unix_sockets.PATH_LIMIT - fixed
    base = Path("/tmp") / f"{os.getpid()}-".ljust(wanted - len("/tmp/"), "x")
    base.mkdir()
    try:
        folder = SocketFolder({"XDG_RUNTIME_DIR": str(base)})
        assert len(folder.socket) == unix_sockets.PATH_LIMIT
        bind(folder.socket).close()
        folder.remove()
    finally:
        base.rmdir()


def test_without_a_usable_folder_the_error_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(unix_sockets, "_places", lambda _: [deep])

    with pytest.raises(
        AddressError, match=r"a socket path may have 107\. Set XDG_RUNTIME_DIR or TMPDIR"
    ):
        SocketFolder()


# --- folders of killed workers -------------------------------------------------------------------


def test_a_later_worker_removes_a_killed_workers_folder(runtime: Path) -> None:
    code = f"""
import socket, sys, time
from rpc_backend_zeromq.unix_sockets import SocketFolder
folder = SocketFolder({environ(runtime)!r})
bound = socket.socket(socket.AF_UNIX)
bound.bind(folder.socket)
print(folder.socket, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            path = Path(worker.stdout.readline().strip())
            unix_sockets.sweep(environ(runtime))
            assert path.exists()  # its worker is alive
        finally:
            worker.send_signal(signal.SIGKILL)

    unix_sockets.sweep(environ(runtime))

    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize("step", ["mkdtemp", "flock"])
def test_a_folder_that_a_starting_worker_removes_is_made_anew(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another worker looks for folders of killed workers before this one has locked its own."""
    module = {"mkdtemp": tempfile, "flock": fcntl}[step]
    real = getattr(module, step)

    def interrupted(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, step, real)  # once
        made = real(*args, **options) if step == "mkdtemp" else None
        unix_sockets.sweep(environ(runtime))
        assert list(runtime.iterdir()) == []
        return made if step == "mkdtemp" else real(*args, **options)

    monkeypatch.setattr(module, step, interrupted)
    folder = SocketFolder(environ(runtime))

    unix_sockets.sweep(environ(runtime))
    assert [str(path) for path in runtime.iterdir()] == [str(Path(folder.socket).parent)]
    folder.remove()


def test_a_folder_that_another_worker_looks_at_is_made_anew(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.mkdtemp
    looking = []

    def locked(**options: Any) -> str:
        monkeypatch.setattr(tempfile, "mkdtemp", real)
        path = real(**options)
        looking.append(os.open(path, os.O_RDONLY))
        fcntl.flock(looking[0], fcntl.LOCK_EX)
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", locked)
    folder = SocketFolder(environ(runtime))
    os.close(looking[0])

    assert [str(path) for path in runtime.iterdir()] == [str(Path(folder.socket).parent)]
    folder.remove()


def test_foreign_folders_are_not_removed(runtime: Path) -> None:
    full, not_ours = (runtime / name for name in ("rpc-zmq-full", "other"))
    for folder in (full, not_ours):
        folder.mkdir()
    (full / "data").write_text("precious")
    (runtime / "rpc-zmq-link").symlink_to(not_ours)
    (runtime / "rpc-zmq-file").write_text("")

    unix_sockets.sweep(environ(runtime))

    assert {path.name for path in runtime.iterdir()} == {
        "rpc-zmq-full",
        "other",
        "rpc-zmq-link",
        "rpc-zmq-file",
    }


def test_a_forked_process_does_not_remove_its_parents_folder(runtime: Path) -> None:
    folder = SocketFolder(environ(runtime))
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)

    assert Path(folder.socket).parent.exists()
    unix_sockets.sweep(environ(runtime))
    assert Path(folder.socket).parent.exists()
    folder.remove()
    assert list(runtime.iterdir()) == []


# --- the identity of a socket --------------------------------------------------------------------


def test_a_node_identifies_a_socket_under_any_path(runtime: Path) -> None:
    path = runtime / "s"
    with bind(str(path)):
        node = Node.of_socket(str(path))
        assert node is not None
        path.rename(runtime / "t")
        assert Node.of_socket(str(runtime / "t")) == node
        with bind(str(path)):
            assert Node.of_socket(str(path)) not in (None, node)


def test_only_sockets_have_a_node(runtime: Path) -> None:
    (runtime / "file").write_text("")
    (runtime / "link").symlink_to("s")
    with bind(str(runtime / "s")):
        for name in ("file", "nothing", "link", "zero\0"):
            assert Node.of_socket(str(runtime / name)) is None
