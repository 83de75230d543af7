"""Finding the entry points of installed packages, without importing the packages.

Pure functions over entry points, so tests can pass their own. If ``sys.path`` has two copies of a
distribution, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpc_backends_core._record import Record

BACKENDS_GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
#: Subcommands and checks that packages add to ``rpc-backends``; only that command reads them.
COMMANDS_GROUP = "rpc.backends.commands"
CHECKS_GROUP = "rpc.backends.checks"
#: The variables that packages read; see `_other_variables`.
VARIABLES_GROUP = "rpc.backends.variables"

#: Torch calls the entry points of this group when it is imported.
_TORCHS_GROUP = "torch.backends"
_GROUPS = (BACKENDS_GROUP, HOOKS_GROUP, COMMANDS_GROUP, CHECKS_GROUP, VARIABLES_GROUP)
#: How similar a group must be to one of ours to count as misspelt; "xarray.backends" is not.
_SIMILARITY = 0.85
#: The value of an entry point: a module, an object, extras.
_VALUE = re.compile(r"\s*[\w.]+\s*(:\s*[\w.]+\s*)?(\[.*\]\s*)?")


class Scan(NamedTuple):
    """The result of one scan of the installed packages; each list is sorted."""

    backends: list[Record]
    hooks: list[Record]
    unreadable: Sequence[Unreadable] = ()
    variables: Sequence[Record] = ()


class Unreadable(NamedTuple):
    """A package whose entry points cannot be read."""

    origin: str
    distribution: str | None
    error: Exception

    def __str__(self) -> str:
        """Return what is wrong, and what to do."""
        name = self.distribution or "PACKAGE"
        return (
            f"the entry points of {self.origin} cannot be read: {type(self.error).__name__}: "
            f"{self.error}. Reinstall the package (pip install --force-reinstall {name}), or uninstall "
            f"it: pip uninstall {name}."
        )


def scan() -> Scan:
    """Scan all installed packages once, for backends, hooks and variables."""
    entry_points, unreadable = read_all(BACKENDS_GROUP)
    return select(entry_points, unreadable)


def read_all(mentioned: str = "") -> tuple[list[Any], list[Unreadable]]:
    """Return the entry points of all installed packages, and the packages whose own cannot be read.

    :param mentioned: read only files that have this text in them, which is much faster.
    """
    # The standard library's module, which torch has imported and used, and so has filled its caches.
    from importlib.metadata import distributions

    entry_points: list[Any] = []
    unreadable = []
    seen = set()
    for distribution in distributions():
        key = getattr(distribution, "_normalized_name", None) or _name_and_version(distribution)[0]
        if key in seen:
            continue
        seen.add(key)
        try:
            if mentioned in (distribution.read_text("entry_points.txt") or ""):
                entry_points += distribution.entry_points
        except Exception as error:  # must not hide the entry points of all other packages
            name, version = _name_and_version(distribution)
            unreadable.append(Unreadable(f"{name} {version or ''}".strip(), name, error))
    return entry_points, unreadable


def select(entry_points: Iterable[Any], unreadable: Sequence[Unreadable] = ()) -> Scan:
    """Select what a scan returns from ``entry_points``, in an order independent of ``sys.path``."""
    wanted: dict[str, list[Any]] = {BACKENDS_GROUP: [], HOOKS_GROUP: [], VARIABLES_GROUP: []}
    for entry_point in entry_points:
        if entry_point.group in wanted:
            wanted[entry_point.group].append(entry_point)
    backends, hooks, variables = map(_records, wanted.values())
    return Scan(backends, hooks, unreadable, variables)


def declared(group: str) -> list[Record]:
    """Return the entry points of one group in all installed packages, sorted."""
    entry_points, _ = read_all(group)
    return _records(point for point in entry_points if point.group == group)


def unreadable() -> list[Unreadable]:
    """Return the installed packages whose entry points cannot be read."""
    return read_all()[1]


def load(record: Record) -> Any:
    """Import the object that a record's entry point names.

    :raises ValueError: the entry point is malformed.
    """
    if not _VALUE.fullmatch(record.value or ""):
        raise ValueError(
            f"the entry point's value is {record.value!r}; it must have the form module:object"
        )
    return record.entry_point.load()


def misspelt_groups(entry_points: Iterable[Any] | None = None) -> list[tuple[str, Record]]:
    """Return the entry points in groups that look like a misspelt one of ours, sorted.

    :param entry_points: the entry points to search; None for those of all installed packages.
    :returns: each with the group that was probably meant.
    """
    if entry_points is None:
        entry_points, _ = read_all()
    by_group: dict[str, list[Any]] = {}
    for entry_point in entry_points:
        by_group.setdefault(entry_point.group, []).append(entry_point)
    misspelt = []
    for group in sorted(by_group):
        meant = _meant(group)
        if meant is not None:
            misspelt += [(meant, record) for record in _records(by_group[group])]
    return misspelt


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
    records: dict[tuple[str, str, str], Record] = {}
    for point in entry_points:
        distribution, version = _name_and_version(point.dist)
        record = Record(point.name, "plugin", distribution, version, point.value, entry_point=point)
        records.setdefault(
            (point.name, f"{distribution or ''} {version or ''}", point.value), record
        )
    return [records[key] for key in sorted(records)]


def _name_and_version(dist: Any) -> tuple[str | None, str | None]:
    """Return a distribution's name and version, from its metadata or else its folder's name.

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
    name, _, version = Path(str(getattr(dist, "_path", ""))).stem.partition("-")
    return fields.get("name") or name or None, fields.get("version") or version or None
