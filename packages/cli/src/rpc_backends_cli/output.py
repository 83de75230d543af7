"""Shared by all commands: the console, JSON output and ``--debug``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Container, Iterator
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rpc_backends_core import Record

#: The key in a click context's ``meta`` that stores ``--debug``.
DEBUG = "rpc_backends_core.debug"
#: The key for ``--json``: whether a JSON document is still to be printed.
JSON = "rpc_backends_core.json"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def console() -> Console:
    """Return the console on stdout: colours on a terminal, plain text of 80 columns elsewhere."""
    from rich.console import Console

    class Plain(Console):
        """Strips the trailing spaces of tables if the output is not a terminal."""

        def print(self, *objects: Any, **settings: Any) -> None:
            if self.is_terminal:
                super().print(*objects, **settings)
                return
            with self.capture() as captured:
                super().print(*objects, **settings)
            self.file.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))

    # rich would otherwise colour names and versions by what they look like.
    return Plain(highlight=False, emoji=False, markup=False)


def grid(*columns: str, title: bool = True, folded: Container[str] = ()) -> Table:
    """Return a table without lines, whose last column takes the remaining width.

    :param columns: the headings.
    :param title: whether to show them.
    :param folded: other columns whose texts may take several lines.
    """
    from rich.table import Table

    table = Table(box=None, show_header=title, header_style="bold", padding=(0, 2, 0, 0))
    for heading in columns:
        if heading == columns[-1] or heading in folded:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, no_wrap=True)
    return table


@contextlib.contextmanager
def stdout_for_json(as_json: bool = True) -> Iterator[None]:
    """Send to stderr what packages print to stdout, where only the JSON belongs.

    :param as_json: whether JSON will be printed; otherwise nothing is changed.
    """
    if not as_json:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)  # extensions in C write to the descriptor
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def print_json(data: object) -> None:
    """Print ``data`` as JSON; values that JSON cannot represent become text."""
    click.echo(json.dumps(data, indent=2, default=str))
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[JSON] = False


def origin(record: Record) -> str:
    """Return the origin of a backend, for people."""
    if record.source == "process":
        return f"registered by {record.distribution}"
    return record.origin


class Failure(click.ClickException):
    """An error of the command; wrapped at word boundaries on a terminal."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        stream = file or sys.stderr
        lines = f"Error: {self.format_message()}".splitlines()
        if stream.isatty():
            width = shutil.get_terminal_size().columns
            lines = [textwrap.fill(line, width, break_on_hyphens=False) for line in lines]
        click.echo("\n".join(lines), file=stream)


def unexpected(error: Exception) -> str:
    """Return the message for an unexpected error, a defect here or in a library."""
    return (
        f"{type(error).__name__}: {error}\nThis error was not expected; --debug shows where it "
        "comes "
        "from."
    )


def debug_option(function: _Function) -> _Function:
    """Add ``--debug`` to a command; it works before and after the command's name."""

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


def _remember_json(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON] = value
    return value


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,  # an error of another option is JSON, too
    callback=_remember_json,
    help='Print JSON and nothing else; an error, too, as {"error": ...}.',
)


def timeout_option(help_text: str) -> Callable[[_Function], _Function]:
    """Return the option ``--timeout``, in seconds.

    :param help_text: what the time limit is for.
    """
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=60,
        show_default=True,
        metavar="SECONDS",
        help=help_text,
    )
