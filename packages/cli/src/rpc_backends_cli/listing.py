"""``rpc-backends list``: lists all backends without importing their packages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from rpc_backends_cli.output import (
    console,
    debug_option,
    grid,
    json_option,
    origin,
    print_json,
    stdout_for_json,
)
from rpc_backends_core.spi.inspection import settings

if TYPE_CHECKING:
    from rich.console import Console

    from rpc_backends_core import Record

STATE_STYLES = {
    "found": "green",
    "loaded": "green",
    "registered": "green",
    "shadowed": "dim",
    "denied": "yellow",
    "unavailable": "yellow",
    "failed": "red",
    "conflict": "red",
    "invalid": "red",
}


@dataclass(frozen=True)
class Row:
    """One row of the list.

    :ivar description: the backend's own description if it is loaded, else its package's summary.
    :ivar capabilities: None if the backend is not loaded and they are unknown.
    :ivar error: why it cannot be used, and what to do.
    """

    name: str
    state: str
    source: str
    distribution: str | None
    version: str | None
    value: str | None
    origin: str
    description: str
    capabilities: list[str] | None
    error: str | None


@dataclass(frozen=True)
class Listing:
    """All backends, with notes."""

    backends: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def gather() -> Listing:
    """Return the backends that a program finds when it imports torch."""
    from rpc_backends_cli.torch_state import bridge, import_torch

    notes = []
    failure = import_torch()
    if failure is not None:
        notes.append(f"torch cannot be imported, so its own backends are not listed: {failure}")
    else:
        state = bridge()
        if state.state != "in place":
            notes.append(f"The bridge to torch is not installed: {state.text}.")
        elif (override := settings.value(settings.OVERRIDE)) is not None:
            notes.append(
                f"{settings.OVERRIDE}={override}: all programs get this backend, whichever they name."
            )
    from rpc_backends_core.spi.inspection import records

    # Sorted by name; among equal names, the one that is used comes first.
    rows: list[Row] = []
    for record in sorted(records(), key=lambda each: each.name):
        before = next((row for row in rows if row.name == record.name), None)
        rows.append(_row(record, before))
    return Listing(rows, notes)


def _row(record: Record, before: Row | None) -> Row:
    description, capabilities = "", None
    if record.state == "shadowed" and before is not None:
        description = f"not used: {before.origin} takes precedence"
    elif record.state in ("loaded", "registered"):
        # A loaded backend describes itself; this imports nothing.
        from rpc_backends_core.spi.inspection import default_registry

        backend = default_registry().backend(record.name)
        description, capabilities = backend.description, sorted(backend.capabilities)
    return Row(
        record.name,
        record.state,
        record.source,
        record.distribution,
        record.version,
        record.value,
        origin(record),
        description or _summary(record),
        capabilities,
        None if record.error is None else str(record.error),
    )


def _summary(record: Record) -> str:
    if record.source != "plugin" or record.distribution is None:
        return ""
    import importlib_metadata

    try:
        return str(importlib_metadata.metadata(record.distribution).get("Summary") or "")
    except (FileNotFoundError, importlib_metadata.PackageNotFoundError):
        return ""  # its metadata is broken; doctor says so


def render(listing: Listing, to: Console) -> None:
    """Print ``listing`` as a table, followed by the errors."""
    from rich.text import Text

    table = grid("NAME", "STATE", "PACKAGE")
    for row in listing.backends:
        package = Text(row.origin)
        if row.description:
            package.append(f"\n{row.description}", "dim")
        if row.capabilities:
            package.append(f"\n{', '.join(row.capabilities)}", "dim")
        style = "dim" if row.state == "shadowed" else "bold cyan"
        table.add_row(Text(row.name, style), Text(row.state, STATE_STYLES[row.state]), package)
    if listing.backends:
        to.print(table)
    else:
        to.print(
            "No RPC backend is installed. To start with one: pip install rpc-backend-tensorpipe"
        )
    errors = {row.error: row for row in listing.backends if row.error}
    for row in errors.values():
        to.print()
        to.print(Text(f"{row.name}: {row.state}", STATE_STYLES[row.state]))
        to.print(Text(row.error or ""), overflow="fold")
    for note in listing.notes:
        to.print()
        to.print(Text.assemble(("Note: ", "yellow"), note), overflow="fold")


@click.command(
    "list",
    epilog="""\b
Example:
  rpc-backends list --json
""",
)
@json_option
@debug_option
def command(as_json: bool) -> None:
    """List all backends, including those that cannot be used.

    The list does not import backends, so a broken one still shows as "found"; use doctor to test
    them. A "shadowed" backend is not used, because another backend of the same name takes precedence.
    """
    if as_json:
        with stdout_for_json():
            data = asdict(gather())
        print_json(data)
        return
    to = console()
    with to.status("looking"):
        listing = gather()
    render(listing, to)
