"""Subcommands and doctor checks from installed packages.

Each is an entry point. A broken one is reported when it is used and does not affect the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from rpc_backends_core.spi import inspection

if TYPE_CHECKING:
    from rpc_backends_cli.report import Section
    from rpc_backends_core.spi import Record


class UnusableError(Exception):
    """A package's entry point cannot be used; the message says what to do."""


def commands(taken: Iterable[str]) -> dict[str, list[Record]]:
    """Return the subcommands of installed packages by name, with all packages that claim the name.

    :param taken: the names of built-in subcommands, which take precedence.
    """
    taken = set(taken)
    by_name: dict[str, list[Record]] = {}
    for record in inspection.declared(inspection.COMMANDS_GROUP):
        if record.name not in taken:
            by_name.setdefault(record.name, []).append(record)
    return by_name


def load_command(claims: list[Record]) -> click.Command:
    """Import the subcommand that ``claims`` declare.

    :raises UnusableError: it cannot be used.
    """
    if len(claims) > 1:
        who = " and ".join(record.origin for record in claims)
        raise UnusableError(f"{who} both claim it. Uninstall one of them.")
    (record,) = claims
    loaded = _load(record)
    if not isinstance(loaded, click.Command):
        raise UnusableError(
            f"{record.value} of {record.origin} is not a click.Command. {remedy(record)}"
        )
    return loaded


def load_command_within(claims: list[Record], seconds: float) -> click.Command:
    """Import the subcommand as :func:`load_command` does, on a thread of its own.

    If the import hangs, the thread keeps running until the process ends.

    :raises UnusableError: it cannot be used, or was not imported in time.
    """
    loaded: list[click.Command] = []
    errors: list[UnusableError] = []

    def load() -> None:
        try:
            loaded.append(load_command(claims))
        except UnusableError as error:
            errors.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not loaded:
        (record,) = claims
        raise UnusableError(
            f"{record.value} of {record.origin} was not imported within {seconds:g} s. {remedy(record)}"
        )
    return loaded[0]


def run_check(record: Record) -> Section:
    """Run the doctor check of an installed package.

    :raises UnusableError: it cannot be used.
    """
    from rpc_backends_cli.report import Section

    check: Callable[[], Any] = _load(record)
    section = check()
    if not isinstance(section, Section):
        raise UnusableError(
            f"{record.value} of {record.origin} returned {type(section).__name__}; it must return "
            f"an rpc_backends_cli.Section. {remedy(record)}"
        )
    return section


def unloadable(record: Record, why: str) -> str:
    """Return the message for a backend whose package hangs or crashes while it is imported."""
    return (
        f"RPC backend {record.name!r} of {record.origin} cannot be used: loading {record.value}: {why}\n"
        f"{remedy(record)}"
    )


def remedy(record: Record) -> str:
    """Return what to do about a broken package."""
    if record.distribution is None:
        return "Fix or remove the package."
    return (
        f"Fix or reinstall it (pip install --force-reinstall {record.distribution}), or uninstall it: "
        f"pip uninstall {record.distribution}."
    )


def _load(record: Record) -> Any:
    try:
        return record.entry_point.load()
    except (Exception, SystemExit) as error:
        raise UnusableError(
            f"{record.value} of {record.origin} cannot be loaded: {type(error).__name__}: {error}. "
            f"{remedy(record)}"
        ) from error
