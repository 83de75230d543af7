"""Finding what installed packages declare, without importing any of it.

Pure functions over entry points: tests hand in their own. `importlib_metadata` itself keeps the first
of two copies of a distribution on ``sys.path``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

BACKENDS_GROUP = "rpc.backends"
HOOKS_GROUP = "rpc.backends.hooks"
#: What packages add to the command ``rpc-backends``; only that looks for these.
COMMANDS_GROUP = "rpc.backends.commands"
CHECKS_GROUP = "rpc.backends.checks"


class Found(NamedTuple):
    """One entry point: what it says and who says it."""

    name: str
    value: str
    distribution: str | None
    version: str | None
    entry_point: Any

    @property
    def origin(self) -> str:
        """The package and its version, for messages."""
        return f"{self.distribution or 'unknown package'} {self.version or ''}".strip()


class Scan(NamedTuple):
    """Everything one look at the installed packages found, each list sorted."""

    backends: list[Found]
    hooks: list[Found]


def scan() -> Scan:
    """Look at all installed packages once, for backends and hooks."""
    import importlib_metadata

    return select(importlib_metadata.entry_points())


def select(entry_points: Iterable[Any]) -> Scan:
    """Pick backends and hooks out of ``entry_points``; the order does not depend on ``sys.path``."""
    backends: list[Found] = []
    hooks: list[Found] = []
    for entry_point in entry_points:
        if entry_point.group == BACKENDS_GROUP:
            backends.append(_found(entry_point))
        elif entry_point.group == HOOKS_GROUP:
            hooks.append(_found(entry_point))
    key = _sort_key
    return Scan(sorted(set(backends), key=key), sorted(set(hooks), key=key))


def declared(group: str) -> list[Found]:
    """Look at all installed packages for one group, and return what they declare, sorted."""
    import importlib_metadata

    found = {_found(entry_point) for entry_point in importlib_metadata.entry_points(group=group)}
    return sorted(found, key=_sort_key)


def _found(entry_point: Any) -> Found:
    name, version = _name_and_version(entry_point.dist)
    return Found(entry_point.name, entry_point.value, name, version, entry_point)


def _name_and_version(dist: Any) -> tuple[str | None, str | None]:
    """Return a distribution's name and version, None for what its metadata does not say.

    From the first lines of its file: `dist.name` and `dist.version` would parse all of it, twice, and
    import the email package for that, which takes longer than the scan.
    """
    try:
        text = dist.read_text("METADATA") or dist.read_text("PKG-INFO") or ""
    except (OSError, UnicodeDecodeError, AttributeError):
        text = ""  # metadata that cannot be read hides a package's name, no more
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break  # the end of the headers
        field, colon, value = line.partition(":")
        if colon:
            fields.setdefault(field.lower(), value.strip())
    return fields.get("name") or None, fields.get("version") or None


def _sort_key(found: Found) -> tuple[str, str, str]:
    return (found.name, found.distribution or "", found.value)
