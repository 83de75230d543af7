"""What is read from a file that is not a lock."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_core import _lock
from rpc_backends_core._errors import LockError, SettingError

PACKAGE = {
    "distribution": "rpc-backend-a",
    "version": "1.0",
    "backends": ["A"],
    "hooks": [],
    "editable": None,
    "files": {"a.py": "00"},
}


def lock_with(**changes: Any) -> str:
    """Return a lock whose package has other fields."""
    return json.dumps({"version": _lock.VERSION, "packages": [{**PACKAGE, **changes}]})


def test_a_written_lock_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    _lock.write(file, [_lock.Package(**PACKAGE)])  # type: ignore[arg-type]
    assert _lock.read(file) == [_lock.Package(**PACKAGE)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[]", "no object with the key 'version'"),
        (b"{}", "no object with the key 'version'"),
        (b"3", "no object with the key 'version'"),
        (b'{"version": 1', "not valid JSON"),
        (b"\xe3\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"version": 1}', "'packages' is not a list"),
        (b'{"version": 1, "packages": [{}]}', "'packages' is not a list"),
        (lock_with(files=["a.py"]).encode(), "'packages' is not a list"),
        (lock_with(backends="A").encode(), "'packages' is not a list"),
        (lock_with(more=1).encode(), "'packages' is not a list"),
    ],
)
def test_another_file_is_no_lock(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(SettingError) as raised:
        _lock.read(file)
    assert f"the lock file {file} is not a lock: " in str(raised.value)
    assert reason in str(raised.value)
    assert f"rpc-backends lock {file}" in str(raised.value)


def test_a_folder_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"it is a directory\. Name a file in it"):
        _lock.read(tmp_path)


def test_a_lock_that_cannot_be_written_keeps_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lock"
    _lock.write(file, [_lock.Package(**PACKAGE)])  # type: ignore[arg-type]

    def fail(path: Path, _text: str, **_more: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(LockError, match=r"cannot be written: .*No space left on device"):
        _lock.write(file, [])
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert _lock.read(file) == [_lock.Package(**PACKAGE)]  # type: ignore[arg-type]


def test_a_written_lock_keeps_its_mode(tmp_path: Path) -> None:
    """Workers of other users read it, whatever the umask of the one who writes it."""
    file = tmp_path / "lock"
    _lock.write(file, [])
    file.chmod(0o644)
    before = os.umask(0o077)
    try:
        _lock.write(file, [_lock.Package(**PACKAGE)])  # type: ignore[arg-type]
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert _lock.read(file) == [_lock.Package(**PACKAGE)]  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_written_lock_keeps_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    _lock.write(file, [])
    os.chown(file, 1234, 1235)
    _lock.write(file, [_lock.Package(**PACKAGE)])  # type: ignore[arg-type]

    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 1235)


@pytest.mark.parametrize(
    ("function", "number"),
    [("replace", errno.EBUSY), ("chmod", errno.EPERM), ("write_text", errno.EROFS)],
    ids=["a mounted file", "a file of another user", "a folder that is read-only"],
)
def test_a_lock_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    file = tmp_path / "lock"
    _lock.write(file, [])
    inode = file.stat().st_ino
    original = getattr(Path, function)

    def fail(path: Path, *args: Any, **more: Any) -> Any:
        if path != file:
            raise OSError(number, os.strerror(number))
        return original(path, *args, **more)

    monkeypatch.setattr(Path, function, fail)
    _lock.write(file, [_lock.Package(**PACKAGE)])  # type: ignore[arg-type]

    assert file.stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert _lock.read(file) == [_lock.Package(**PACKAGE)]  # type: ignore[arg-type]


def test_a_lock_in_a_missing_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "missing/lock"
    with pytest.raises(LockError, match=f"{file} cannot be written"):
        _lock.write(file, [])
