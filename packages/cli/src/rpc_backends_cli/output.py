"""What all commands share: the console, JSON, and ``--debug``."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rpc_backends_core import Record

#: The key in a click context's ``meta`` under which ``--debug`` is remembered.
DEBUG = "rpc_backends_core.debug"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def console() -> Console:
    """Return the console on stdout: colours on a terminal, plain text of 80 columns elsewhere."""
    from rich.console import Console

    class Plain(Console):
        """Leaves out the spaces with which tables are filled up, where nobody sees them."""

        def print(self, *objects: Any, **settings: Any) -> None:
            if self.is_terminal:
                super().print(*objects, **settings)
                return
            with self.capture() as captured:
                super().print(*objects, **settings)
            self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))

    # Names and versions are not to be coloured by what they happen to look like.
    return Plain(highlight=False, emoji=False, markup=False)


def grid(*columns: str, title: bool = True) -> Table:
    """Return a table without lines, whose last column takes what room is left.

    :param columns: the headings.
    :param title: whether to show them.
    """
    from rich.table import Table

    table = Table(box=None, show_header=title, header_style="bold", padding=(0, 2, 0, 0))
    for heading in columns[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    return table


def print_json(data: object) -> None:
    """Print ``data`` as JSON: what is not JSON by itself as text."""
    click.echo(json.dumps(data, indent=2, default=str))


def origin(record: Record) -> str:
    """Return where a backend is from, in words."""
    if record.source == "process":
        return f"registered by {record.distribution}"
    return record.origin


class Failure(click.ClickException):
    """An error of the command, wrapped between words where a person reads it."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        stream = file or sys.stderr
        lines = f"Error: {self.format_message()}".splitlines()
        if stream.isatty():
            width = shutil.get_terminal_size().columns
            lines = [textwrap.fill(line, width, break_on_hyphens=False) for line in lines]
        click.echo("\n".join(lines), file=stream)


def unexpected(error: Exception) -> str:
    """Return the text for an error that is a defect, ours or that of somebody we called."""
    return (
        f"{type(error).__name__}: {error}\nThis was not expected; with --debug you see where it comes "
        "from."
    )


def debug_option(function: _Function) -> _Function:
    """Give a command ``--debug``, so that it can stand before and behind the command's name."""

    def remember(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            context.meta[DEBUG] = True

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Show the traceback of an error.",
    )(function)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
