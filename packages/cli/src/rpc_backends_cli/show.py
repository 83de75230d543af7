"""``rpc-backends show NAME``: loads one backend and shows its details."""

from __future__ import annotations

import inspect
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from rpc_backends_cli.options import Option, options_of
from rpc_backends_cli.output import (
    DEBUG,
    Failure,
    console,
    debug_option,
    grid,
    json_option,
    origin,
    print_json,
    timeout_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from rpc_backends_core import Record
    from rpc_backends_processes import WorkerContext
    from rpc_backends_processes.isolation import Outcome

#: The width of the column of defaults. A longer one moves what follows in its line, or has its own line.
_DEFAULT = 10


@dataclass(frozen=True)
class Page:
    """The details of one backend.

    :ivar entry_point: as declared (``module:object``).
    :ivar file: the source file of the object, or of the init handler.
    :ivar goes_before: other backends of the same name, which are not used.
    """

    name: str
    state: str
    source: str
    distribution: str | None
    version: str | None
    origin: str
    entry_point: str | None
    file: str | None
    description: str
    options_type: str | None
    options: list[Option]
    capabilities: dict[str, str]
    handlers: dict[str, str]
    goes_before: list[str]


def gather(name: str, limit: float) -> Page:
    """Load the backend called ``name`` in another process and return its details.

    The import may hang, crash or print, and affects only that process.

    :param limit: time limit in seconds.
    :raises Failure: it cannot be loaded.
    """
    from rpc_backends_processes import isolation

    (outcome,) = isolation.run(_look, [(name,)], limit)
    if isinstance(outcome.result, Page):
        for text in outcome.reported:
            click.echo(f"Warning: {text}", err=True)
        return outcome.result
    refused = outcome.result if isinstance(outcome.result, _Refused) else None
    trace = refused.traceback if refused else outcome.traceback
    if trace and click.get_current_context().meta.get(DEBUG):
        click.echo(trace, err=True)
    if refused:
        raise Failure(refused.text)
    if outcome.traceback:
        raise Failure(f"{outcome.error}\nThis error was not expected; --debug shows its origin.")
    raise Failure(_unloadable(name, outcome, limit))


@dataclass(frozen=True)
class _Refused:
    """Why the registry cannot load a backend."""

    text: str
    traceback: str


def _look(me: WorkerContext, name: str) -> Page | _Refused:
    """Return the details of a backend; runs in a process of its own."""
    me.doing("importing torch")
    from rpc_backends_cli.torch_state import import_torch
    from rpc_backends_core.spi import RpcBackendsError

    failure = import_torch()
    if failure is not None:
        return _Refused(f"torch cannot be imported: {failure}", "")
    me.doing(f"loading {name}")
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_place, **_more: me.tell(str(message))
        try:
            return _page(name)
        except RpcBackendsError as error:
            return _Refused(str(error), "".join(traceback.format_exception(error)))


def _unloadable(name: str, outcome: Outcome, limit: float) -> str:
    """Return the message for a process that hung or crashed while it loaded a backend."""
    from rpc_backends_cli.installed import unloadable
    from rpc_backends_cli.report import limit_note
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import record

    text = f"{outcome.error} while {outcome.stage or 'it started'}"
    text += limit_note(limit, timed_out=outcome.timed_out)
    try:
        backend = record(name)
    except RpcBackendsError:
        return text
    return unloadable(backend, text) if backend.source == "plugin" else text


def _page(name: str) -> Page:
    from rpc_backends_core.spi import COMMITMENTS
    from rpc_backends_core.spi.inspection import default_registry, records

    registry = default_registry()
    record = registry.load(name)
    backend = registry.backend(name)
    # A backend may also declare capabilities that this project does not know.
    commitments = {str(name): text for name, text in COMMITMENTS.items()}
    others = [
        candidate
        for candidate in records()
        if candidate.name == record.name and candidate.state == "shadowed"
    ]
    return Page(
        record.name,
        record.state,
        record.source,
        record.distribution,
        record.version,
        origin(record),
        record.value,
        _file(record, backend.init_backend_handler),
        backend.description,
        None if backend.options_type is None else _path(backend.options_type),
        options_of(backend),
        {name: commitments.get(name, "") for name in sorted(backend.capabilities)},
        {field: _path(handler) for field, handler in backend.value._asdict().items()},
        [origin(shadowed) for shadowed in others],
    )


def _path(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    return repr(obj) if name is None else f"{obj.__module__}.{name}"


def _file(record: Record, handler: Callable[..., Any]) -> str | None:
    if record.value is not None:
        module = sys.modules.get(record.value.partition(":")[0])
        if module is not None and getattr(module, "__file__", None):
            return module.__file__
    try:
        return inspect.getsourcefile(inspect.unwrap(handler))
    except TypeError:
        return None  # written in C


def render(page: Page, to: Console) -> None:
    """Show ``page``."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    to.print(Text.assemble((page.name, "bold cyan"), "  ", page.description))

    def section(title: str, table: Table) -> None:
        to.print()
        to.print(Text(title, "bold"))
        to.print(Padding(table, (0, 0, 0, 2)))

    facts = grid("", "", title=False)
    for title, value in _facts(page):
        facts.add_row(Text(title, "dim"), value)
    to.print()
    to.print(Padding(facts, (0, 0, 0, 2)))

    options = grid("NAME", f"{'DEFAULT':{_DEFAULT}}  VALUE")
    for option in page.options:
        default = option.default or "required"
        about = Text(f"{default:{_DEFAULT}}", "yellow" if option.default is None else "")
        between = "  " if len(default) <= 2 * _DEFAULT else "\n"
        about.append(f"{between}{option.values or option.type or 'any'}", "default")
        if option.variable:
            about.append(f"\nvariable {option.variable}", "default")
        if option.meaning:
            about.append(f"\n{option.meaning}", "dim")
        if option.declared_by != "handler":
            about.append("\nfrom the options type; the handler takes any keyword", "dim")
        options.add_row(Text(option.name, "cyan"), about)
    section("Options", options)

    if page.capabilities:
        capabilities = grid("", "", title=False)
        for name, meaning in page.capabilities.items():
            capabilities.add_row(Text(name, "green"), meaning)
        section("Capabilities", capabilities)

    handlers = grid("", title=False)
    for path in page.handlers.values():
        handlers.add_row(path)
    section("Handlers", handlers)


def _facts(page: Page) -> list[tuple[str, str]]:
    known = [
        ("state", page.state),
        ("package", page.origin),
        ("entry point", page.entry_point),
        ("file", page.file),
        ("options type", page.options_type),
        ("goes before", ", ".join(page.goes_before)),
    ]
    return [(title, value) for title, value in known if value]


@click.command(
    "show",
    epilog="""\b
Examples:
  rpc-backends show TENSORPIPE
  rpc-backends show tensorpipe --json
""",
)
@click.argument("name")
@timeout_option("Time limit for loading the package.")
@json_option
@debug_option
def command(name: str, timeout: float, as_json: bool) -> None:
    """Show one backend: its origin, options and capabilities.

    Explains each option if the backend's author documented it. NAME is looked up as in init_rpc,
    ignoring case. This imports the backend's package, in another process.
    """
    if as_json:
        print_json(asdict(gather(name, timeout)))
        return
    to = console()
    with to.status(f"loading {name}"):
        page = gather(name, timeout)
    render(page, to)
