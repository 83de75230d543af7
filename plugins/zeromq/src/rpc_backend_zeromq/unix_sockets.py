"""Unix sockets for workers on one host, in folders that only their user can enter.

A worker locks its folder while it lives. A killed worker leaves its folder behind without a lock, and a
worker that starts later removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rpc_backends_agents.engine.errors import AddressError

#: The longest path of a socket, in bytes: Linux has 108, including the terminating zero.
PATH_LIMIT = 107
_PREFIX = "rpc-zmq-"
_SOCKET = "s"
#: Characters that ``mkdtemp`` adds to the prefix.
_RANDOM = 8
#: How many folders to try if other workers take them for those of killed workers.
_TRIES = 20


@dataclass(frozen=True)
class Node:
    """Identifies a file on a running kernel, independent of its path."""

    device: int
    inode: int

    @classmethod
    def of_socket(cls, path: str) -> Node | None:
        """Return the node of the socket at ``path``; None if there is none that this process may use."""
        try:
            status = Path(path).lstat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISSOCK(status.st_mode) or not os.access(path, os.W_OK):
            return None
        return cls(status.st_dev, status.st_ino)


class SocketFolder:
    """A folder for the Unix socket of one worker.

    :raises AddressError: no folder can be made.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._path, lock = _make(list(_places(environ)))
        self._lock: int | None = lock
        self._owner = os.getpid()

    @property
    def socket(self) -> str:
        """The path of the socket."""
        return str(self._path / _SOCKET)

    def remove(self) -> None:
        """Remove the folder and its socket, unless this is a forked child of the process that made it."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        if os.getpid() == self._owner:
            shutil.rmtree(self._path, ignore_errors=True)
        os.close(lock)


def sweep(environ: Mapping[str, str] = os.environ) -> None:
    """Remove the folders that killed workers of this user have left behind."""
    for place in _places(environ):
        with contextlib.suppress(OSError):
            for folder in place.glob(f"{_PREFIX}*"):
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(lock).st_uid != os.getuid():
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Remove only our socket: a folder with other contents stays.
            (folder / _SOCKET).unlink(missing_ok=True)
            folder.rmdir()
        finally:
            os.close(lock)


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the directories in which to make a folder, the preferred one first."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield from dict.fromkeys(
        Path(place)
        for place in (runtime, environ.get("TMPDIR") or tempfile.gettempdir(), "/tmp")
        if place and Path(place).is_absolute() and Path(place).is_dir()
    )


def _make_in(place: Path) -> tuple[Path, int]:
    """Make a folder and lock it.

    :raises FileNotFoundError: another worker has removed the folder before it was locked.
    :raises BlockingIOError: another worker is about to remove it.
    :raises OSError: the folder cannot be made or locked.
    """
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))  # with mode 0700
    lock = -1
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()  # it may have been removed after it was opened
    except OSError:
        if lock >= 0:
            os.close(lock)
        with contextlib.suppress(OSError):
            path.rmdir()
        raise
    return path, lock


def _make(places: list[Path]) -> tuple[Path, int]:
    why = []
    for place in places:
        length = len(os.fsencode(place)) + len(f"/{_PREFIX}/{_SOCKET}") + _RANDOM
        if length > PATH_LIMIT:
            why.append(
                f"a path in {place} has {length} bytes, but a socket path may have {PATH_LIMIT}"
            )
            continue
        for attempt in range(1, _TRIES + 1):
            try:
                return _make_in(place)
            except (FileNotFoundError, BlockingIOError) as error:
                if attempt == _TRIES:
                    why.append(str(error))
            except OSError as error:
                why.append(str(error))
                break
    raise AddressError(
        f"there is no folder for a Unix socket: {'; '.join(why) or 'none exists'}. Set XDG_RUNTIME_DIR "
        "or TMPDIR to a folder that this user can write to, or pass unix_sockets=False."
    )
