"""Finding the entry points of installed packages, without importing the packages.

Pure functions over entry points, so tests can pass their own. If ``sys.path`` has two copies of a
distribution, `importlib_metadata` keeps the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rpc_backends_core._record import Record

BACKENDS_GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
#: Subcommands and checks that packages add to ``rpc-backends``; only that command reads them.
COMMANDS_GROUP = "rpc.backends.commands"
CHECKS_GROUP = "rpc.backends.checks"


#: Torch calls the entry points of this group when it is imported.
_TORCHS_GROUP = "torch.backends"
_GROUPS = (BACKENDS_GROUP, HOOKS_GROUP, COMMANDS_GROUP, CHECKS_GROUP)
#: How similar a group must be to one of ours to count as misspelt; "xarray.backends" is not.
_SIMILARITY = 0.85


class Scan(NamedTuple):
    """The result of one scan of the installed packages; each list is sorted."""

    backends: list[Record]
    hooks: list[Record]


def scan() -> Scan:
    """Scan all installed packages once, for backends and hooks."""
    import importlib_metadata

    return select(importlib_metadata.entry_points())


def select(entry_points: Iterable[Any]) -> Scan:
    """Select backends and hooks from ``entry_points``, in an order independent of ``sys.path``."""
    wanted: dict[str, list[Any]] = {BACKENDS_GROUP: [], HOOKS_GROUP: []}
    for entry_point in entry_points:
        if entry_point.group in wanted:
            wanted[entry_point.group].append(entry_point)
    return Scan(_records(wanted[BACKENDS_GROUP]), _records(wanted[HOOKS_GROUP]))


def declared(group: str) -> list[Record]:
    """Return the entry points of one group in all installed packages, sorted."""
    import importlib_metadata

    return _records(importlib_metadata.entry_points(group=group))


def misspelt_groups(entry_points: Iterable[Any] | None = None) -> list[tuple[str, Record]]:
    """Return the entry points in groups that look like a misspelt one of ours, sorted.

    :param entry_points: those of all installed packages if it is None.
    :returns: each with the group that was probably meant.
    """
    if entry_points is None:
        import importlib_metadata

        entry_points = importlib_metadata.entry_points()
    by_group: dict[str, list[Any]] = {}
    for entry_point in entry_points:
        by_group.setdefault(entry_point.group, []).append(entry_point)
    found = []
    for group in sorted(by_group):
        meant = _meant(group)
        if meant is not None:
            found += [(meant, record) for record in _records(by_group[group])]
    return found


def misspelt_group_text(meant: str, record: Record) -> str:
    """Return what is wrong with an entry point of :func:`misspelt_groups`, and what to do."""
    return (
        f"declares {record.name!r} in the entry-point group {record.entry_point.group!r}, which nothing "
        f"reads; did you mean {meant!r}? Its author must correct the group and release the package "
        "again; if you are the author, reinstall it afterwards."
    )


def _meant(group: str) -> str | None:
    """Return the group of ours that a misspelt group probably means; None for any other group."""
    import difflib

    if group in _GROUPS or group == _TORCHS_GROUP:
        return None
    spelt = group.casefold().replace("_", ".").replace("-", ".")
    close = difflib.get_close_matches(spelt, _GROUPS, n=1, cutoff=_SIMILARITY)
    return close[0] if close else None


def _records(entry_points: Iterable[Any]) -> list[Record]:
    found: dict[tuple[str, str, str], Record] = {}
    for one in entry_points:
        distribution, version = _name_and_version(one.dist)
        record = Record(one.name, "plugin", distribution, version, one.value, entry_point=one)
        found.setdefault((one.name, f"{distribution or ''} {version or ''}", one.value), record)
    return [found[key] for key in sorted(found)]


def _name_and_version(dist: Any) -> tuple[str | None, str | None]:
    """Return a distribution's name and version, each None if its metadata lacks it.

    Reads only the first lines of the metadata file. `dist.name` and `dist.version` would each parse
    the whole file with the email package, which takes longer than the scan.
    """
    try:
        text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError, AttributeError):
        text = ""  # unreadable metadata hides only the package's name
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break  # the end of the headers
        header, colon, value = line.partition(":")
        if colon:
            fields.setdefault(header.lower(), value.strip())
    return fields.get("name") or None, fields.get("version") or None
