"""The folder with the sockets of this user's workers. Only this user can enter it."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

_NAME = "rpc-backends-inspect-{}"
_ENDING = ".socket"
#: How many characters of a worker's name are in its socket's name. A socket's path has at most 107 bytes.
_SHOWN = 32
_TRIES = 10
_numbers = itertools.count(1)


class NoFolderError(OSError):
    """No folder for sockets could be made; the text says why."""


@dataclass(frozen=True)
class WorkerSocket:
    """The socket of a worker.

    :ivar worker: the worker's name, cut if it is long.
    """

    path: Path
    pid: int
    worker: str

    def process_state(self) -> str | None:
        """Return the letter of the process's state as in ``/proc``; None if there is no such process."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return None


def places(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the folders in which sockets may be, the preferred one first."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    for place in dict.fromkeys((runtime, environ.get("TMPDIR") or tempfile.gettempdir(), "/tmp")):
        if place and Path(place).is_absolute() and Path(place).is_dir():
            yield Path(place) / _NAME.format(os.geteuid())


def listen(worker: str) -> tuple[socket.socket, Path]:
    """Return a listening socket for this process, and its path.

    :raises NoFolderError: there is no folder that only this user can enter.
    """
    why = []
    name = f"{os.getpid()}-{next(_numbers)}-{quote(worker, safe='')[:_SHOWN]}{_ENDING}"
    for folder in places():
        # Another worker may stop at any moment and remove the folder if it is empty.
        for _ in range(_TRIES):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                _check(folder)
                return _bound(folder / name), folder / name
            except FileNotFoundError as error:
                why.append(str(error))
            except OSError as error:
                why.append(str(error))
                break
    raise NoFolderError(f"no folder for the socket of the recorder: {'; '.join(why)}")


def sockets() -> list[WorkerSocket]:
    """Return the sockets of this user's workers, including those of processes that have ended."""
    found = []
    for folder in places():
        with contextlib.suppress(OSError):
            _check(folder)
            for path in folder.glob(f"*{_ENDING}"):
                pid, _, rest = path.name.removesuffix(_ENDING).partition("-")
                if pid.isdecimal():
                    found.append(WorkerSocket(path, int(pid), unquote(rest.partition("-")[2])))
    return sorted(found, key=lambda one: (one.worker, one.pid, one.path))


def _check(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder that only this user can enter")


def _bound(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by an earlier process with this id
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener
