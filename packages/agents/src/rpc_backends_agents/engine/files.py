"""What tells that a file has changed, for all that is read again while a worker runs."""

from __future__ import annotations

import os


def state(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Return a value that differs after every change of a file.

    A change of its access rights counts, too, because it can make a refused file valid.

    :raises OSError: the file does not exist, or cannot be reached.
    """
    status = os.stat(path)  # noqa: PTH116  # cheap: workers look several times a second
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def state_if_there(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return the same; None if the file does not exist, or cannot be reached."""
    try:
        return state(path)
    except OSError:
        return None
