"""What is read from a file that is not a lock."""

from __future__ import annotations

import errno
import json
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

    def fail(path: Path, _text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(LockError, match=r"cannot be written: .*No space left on device"):
        _lock.write(file, [])
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert _lock.read(file) == [_lock.Package(**PACKAGE)]  # type: ignore[arg-type]


def test_a_lock_in_a_missing_folder_is_an_error_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "missing/lock"
    with pytest.raises(LockError, match=f"{file} cannot be written"):
        _lock.write(file, [])
