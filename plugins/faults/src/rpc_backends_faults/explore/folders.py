"""The folder of a search (`--out`): earlier results stay until a new search begins."""

from __future__ import annotations

import shutil
from pathlib import Path

#: In a folder of results. Without it, the folder may belong to another program.
_MARKER = ".faults-explore"
#: The run without faults, until the search begins.
_FIRST = "without-faults"
_RUNS = "runs"
_RESULTS = (_RUNS, "failures", "doubtful", "explore.json", "junit.xml", "report.html")


def check(out: Path) -> None:
    """Check that a folder is empty, new, or has the results of an earlier search.

    :raises ValueError: it holds something else.
    """
    if out.exists() and any(out.iterdir()) and not (out / _MARKER).is_file():
        raise ValueError(
            f"{str(out)!r} is not empty and has no earlier result; pass another folder with --out."
        )


def first_run(out: Path) -> Path:
    """Return a folder, not yet created, for the run without faults; earlier results stay.

    :raises OSError: the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).touch()
    _remove(out / _FIRST)
    return out / _FIRST


def begin(out: Path) -> Path:
    """Remove the results of an earlier search, all at once; return the new folder of the first run.

    :raises OSError: something cannot be removed.
    """
    for name in _RESULTS:
        _remove(out / name)
    first = run(out, 0)
    first.parent.mkdir()
    (out / _FIRST).rename(first)
    return first


def run(out: Path, number: int) -> Path:
    """Return the folder of a run."""
    return out / _RUNS / f"{number:05}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
