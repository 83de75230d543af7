"""Finding what installed packages declare, without importing any of it.

Pure functions over entry points: tests pass their own. `importlib_metadata` itself keeps the first
of two copies of a distribution on ``sys.path``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rpc_backends_core._record import Record

BACKENDS_GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
#: What packages add to the command ``rpc-backends``; only the command looks for these.
COMMANDS_GROUP = "rpc.backends.commands"
CHECKS_GROUP = "rpc.backends.checks"


class Scan(NamedTuple):
    """What one look at the installed packages found, each list sorted."""

    backends: list[Record]
    hooks: list[Record]


def scan() -> Scan:
    """Look at all installed packages once, for backends and hooks."""
    import importlib_metadata

    return select(importlib_metadata.entry_points())


def select(entry_points: Iterable[Any]) -> Scan:
    """Pick backends and hooks out of ``entry_points``; the order does not depend on ``sys.path``."""
    wanted: dict[str, list[Any]] = {BACKENDS_GROUP: [], HOOKS_GROUP: []}
    for entry_point in entry_points:
        if entry_point.group in wanted:
            wanted[entry_point.group].append(entry_point)
    return Scan(_records(wanted[BACKENDS_GROUP]), _records(wanted[HOOKS_GROUP]))


def declared(group: str) -> list[Record]:
    """Look at all installed packages for one entry-point group; return what they declare, sorted."""
    import importlib_metadata

    return _records(importlib_metadata.entry_points(group=group))


def _records(entry_points: Iterable[Any]) -> list[Record]:
    found: dict[tuple[str, str, str], Record] = {}
    for one in entry_points:
        distribution, version = _name_and_version(one.dist)
        record = Record(one.name, "plugin", distribution, version, one.value, entry_point=one)
        found.setdefault((one.name, f"{distribution or ''} {version or ''}", one.value), record)
    return [found[key] for key in sorted(found)]


def _name_and_version(dist: Any) -> tuple[str | None, str | None]:
    """Return a distribution's name and version, None for what its metadata does not say.

    Read from the first lines of its file: `dist.name` and `dist.version` would parse all of it, twice,
    and import the email package for that, which takes longer than the scan.
    """
    try:
        text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError, AttributeError):
        text = ""  # unreadable metadata hides a package's name and nothing more
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break  # the end of the headers
        header, colon, value = line.partition(":")
        if colon:
            fields.setdefault(header.lower(), value.strip())
    return fields.get("name") or None, fields.get("version") or None
