"""The command ``rpc-backends faults explore``."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from rpc_backends_cli import Failure, debug_option, json_option, print_json
from rpc_backends_faults.explore.schedules import KINDS, Strategy

if TYPE_CHECKING:
    from rpc_backends_faults.explore.plan import Plan
    from rpc_backends_faults.explore.search import Search

_UNITS = {"s": 1, "m": 60, "h": 3600}
#: Seconds between two lines of progress if stderr is not a terminal.
_LINE_EVERY = 30.0
_DEFAULT_BUDGET = 600.0
_NO_SEARCH, _INTERRUPTED = 2, 130
#: Of a command that runs a program: what follows the program's name belongs to the program.
FOR_PROGRAMS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


class NoSearch(Failure):
    """Nothing was searched, so the program may have failures or not."""

    exit_code = _NO_SEARCH


class InterruptedFailure(Failure):
    """The user ended the command before the search began."""

    exit_code = _INTERRUPTED


class Duration(click.ParamType):  # type: ignore[type-arg]  # older versions of click refuse a type
    """A duration such as ``90``, ``90s``, ``10m`` or ``1h``, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is not a duration such as 90s, 10m or 1h.", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class Names(click.ParamType):  # type: ignore[type-arg]  # as above
    """Names of kinds, separated by commas."""

    name = "kinds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
        unknown = [name for name in names if name not in KINDS]
        if unknown:
            self.fail(
                f"{unknown[0]!r} is not a kind that is generated. The kinds are: {', '.join(KINDS)}.",
                param,
                ctx,
            )
        return names


def check_program(words: Sequence[str]) -> None:
    """Check that a program is no mistyped option: those that are not known are left to the program.

    :raises click.UsageError: its first word begins with a hyphen.
    """
    context = click.get_current_context()
    if not words[0].startswith("-"):
        return
    from rpc_backends_core.spi import nearest

    name = words[0].partition("=")[0]
    known = [option for entry in context.command.params for option in entry.opts]
    options = [option for option in known if option.startswith("-")]
    close = nearest(name, options)
    hint = f"Did you mean {close!r}?" if close else f"The options are {', '.join(options)}."
    raise click.UsageError(f"no such option {name!r}. {hint}", context)


def _check_backend(name: str | None) -> None:
    """Check that there is a backend of this name.

    :raises click.BadParameter: there is none; the message lists those that are known.
    """
    if name is None:
        return
    import rpc_backends_core

    try:
        rpc_backends_core.record(name)
    except rpc_backends_core.UnknownBackendError as error:
        raise click.BadParameter(str(error), param_hint="--against") from error


@click.command("explore", context_settings=FOR_PROGRAMS)
@click.option(
    "--budget",
    type=Duration(),
    metavar="TIME",
    help="The time for everything, with shrinking: 90s, 10m, 1h. Default: 10m; no limit with --runs.",
)
@click.option("--runs", type=click.IntRange(min=1), help="The number of schedules to generate.")
@click.option(
    "--failures",
    type=click.IntRange(min=1),
    help="Stop exploring after so many different failures.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**62),
    default=0,
    show_default=True,
    help="The same seed gives the same schedules.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("explore"),
    show_default=True,
    help="The folder for the report, the rule files and the logs.",
)
@click.option(
    "--invariants",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A Python file with functions check_...(run) that raise an error if a run broke a promise.",
)
@click.option(
    "--kinds",
    type=Names(),
    default=KINDS,
    metavar="KIND,...",
    help="The kinds of faults to inject. Default: all.",
)
@click.option(
    "--accept",
    "accepted",
    type=click.IntRange(0, 255),
    multiple=True,
    metavar="STATUS",
    help="An exit status, besides 0, with which the program may end; can be repeated.",
)
@click.option(
    "--hang",
    type=Duration(),
    default="75s",
    show_default=True,
    metavar="TIME",
    help="A run that waits so long without calls and output hangs. Must exceed the RPC timeout.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="A run that takes longer hangs. Time without a processor does not count.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at the same time, besides those that only wait. Default: one for each core.",
)
@click.option(
    "--confirm",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How often a shrunk schedule is run to say in how many runs it fails.",
)
@click.option(
    "--corpus",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Rule files of past failures to try first; those of new failures are added.",
)
@click.option(
    "--against",
    metavar="BACKEND",
    help="Run shrunk schedules on this backend too. If none fails there, the backend is suspected.",
)
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="guided",
    show_default=True,
    help="guided: each effect and kind at each place, then combinations. random: faults anywhere.",
)
@click.option("--keep", is_flag=True, help="Keep the folders of runs that passed.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@json_option
@debug_option
def explore(program: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run a program again and again under generated faults, and shrink what makes it fail.

    Write PROGRAM and its arguments after the options. It must end with status 0 without faults.
    Exits with status 1 if a run failed, also after Ctrl-C, and with 2 if nothing could be searched.
    """
    check_program(program)
    _check_backend(options["against"])
    from rpc_backends_faults.explore import results
    from rpc_backends_faults.explore.search import Search

    try:
        search = Search(_plan(program, options), _progress(sys.stderr.isatty()))
        with _interruptible():
            interrupted = False
            try:
                search.run()
            except KeyboardInterrupt:
                interrupted = True
    except (ValueError, OSError) as error:
        raise NoSearch(str(error)) from error
    if interrupted and not search.has_begun:
        raise InterruptedFailure(
            "interrupted before the run without faults had ended; nothing was searched."
        )
    if sys.stderr.isatty():
        click.echo(err=True)
    page = results.write(search.findings, search.plan)
    if as_json:
        print_json(search.findings.data())
    else:
        click.echo("\n".join(results.lines(search.findings, search.plan)))
        click.echo(f"\n{page}")
    if search.findings.error:
        raise NoSearch(search.findings.error)
    if search.findings.failures:
        raise click.exceptions.Exit(1)
    if interrupted:
        raise click.exceptions.Exit(_INTERRUPTED)


def _plan(program: tuple[str, ...], options: dict[str, Any]) -> Plan:
    """Return the plan; changes nothing in the folder of results.

    :raises ValueError: the folder holds something else, or the invariants cannot be loaded.
    """
    import os

    from rpc_backends_faults.explore import folders, invariants, processes
    from rpc_backends_faults.explore.plan import Plan

    out: Path = options["out"].absolute()
    folders.check(out)
    seconds = options["budget"]
    if seconds is None and options["runs"] is None:
        seconds = _DEFAULT_BUDGET
    file: Path | None = options["invariants"]
    return Plan(
        program=processes.Program(processes.resolved(program), options["hang"], options["timeout"]),
        out=out,
        kinds=options["kinds"],
        corpus=options["corpus"],
        seed=options["seed"],
        strategy=options["strategy"],
        seconds=seconds,
        runs=options["runs"],
        failures=options["failures"],
        jobs=options["jobs"] or os.cpu_count() or 1,
        confirmations=options["confirm"],
        accepted=(0, *options["accepted"]),
        invariants=tuple(invariants.load(file)),
        invariants_file=file,
        against=options["against"],
        keep=options["keep"],
    )


def _progress(terminal: bool) -> Any:
    """Return a function that shows the state of a search on stderr."""
    shown = 0.0

    def show(search: Search) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < (1.0 if terminal else _LINE_EVERY):
            return
        shown = now
        findings = search.findings
        left = search.seconds_left()
        line = (
            f"{findings.runs} runs, {findings.places.covered()} of {len(findings.places)} places, "
            f"{len(findings.failures)} failures"
        )
        if left is not None:
            line += f", {int(left) // 60}:{int(left) % 60:02} left"
        click.echo(f"\r\x1b[K{line}" if terminal else line, nl=not terminal, err=True)

    return show


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C inside the block, so that all programs are ended."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
