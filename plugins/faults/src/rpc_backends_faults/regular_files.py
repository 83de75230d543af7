"""Reads files that a user names; the path may lead to anything, for example a FIFO."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rpc_backends_faults.rules import RuleError


def read_text(path: Path, what: str, *, most: int | None = None, errors: str = "strict") -> str:
    """Return the text of a file.

    :param what: the purpose of the file, for error messages.
    :param most: the largest size in bytes; None means no limit.
    :param errors: as for :meth:`bytes.decode`.
    :raises RuleError: the file cannot be read, is too large, or is not a regular file (reading a FIFO
        or a device may never end).
    """
    try:
        data = _data(path, -1 if most is None else most + 1)
        if data is None:
            problem = f"the {what} {path} is not a regular file."
        elif most is not None and len(data) > most:
            problem = f"the {what} {path} is too large: at most {most} bytes are allowed."
        else:
            return data.decode("utf-8", errors)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path, or invalid UTF-8
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuleError([f"the {what} {path} cannot be read: {reason}."]) from error
    raise RuleError([problem])


def state(path: Path) -> tuple[int, ...]:
    """Return a value that differs after every change of a file.

    :raises OSError: the file does not exist.
    """
    found = path.stat()
    # st_ctime also changes when a file becomes readable.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def _data(path: Path, most: int) -> bytes | None:
    with open(path, "rb", opener=_without_waiting) as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a FIFO would wait for its writer
