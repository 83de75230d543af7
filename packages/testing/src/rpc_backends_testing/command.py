"""``rpc-backends conformance NAME``: runs the conformance suite by pytest in a separate process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rpc_backends_testing as testing
from rpc_backends_cli import Failure, console, debug_option, json_option, print_json
from rpc_backends_processes import Done, News, Template, WorkerError, Workers, exit_on_signals
from rpc_backends_processes import Failure as StepFailed
from rpc_backends_testing import badge as badges
from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.console import render
from rpc_backends_testing.run_display import RunDisplay

if TYPE_CHECKING:
    from rpc_backends_testing.results import Report

#: Seconds that the run has to stop its workers and write its report after Ctrl-C.
_GRACE_PERIOD = 20.0
#: After these seconds without a result, the display names the running tests.
_SILENCE = 15.0
_USAGE = 2
_INCOMPLETE = 3
_SUITE = "rpc_backends_testing"
_TORCH = "torch"  # the chapter with torch's own suites
_FOLDER = Path(testing.__file__).parent


class UsageFailure(Failure):
    """The arguments of the command cannot be used."""

    exit_code = _USAGE


def arguments(
    name: str,
    folder: Path,
    *,
    options: Sequence[str] = (),
    chapters: Sequence[str] = (),
    torch_tier: bool = False,
    suite_version: int | None = None,
    timeout_factor: float | None = None,
    expression: str | None = None,
    jobs: int | None = None,
    maxfail: int | None = None,
) -> list[str]:
    """Return pytest's arguments for a run of the suite that depends on nothing in the current folder.

    :param folder: an empty folder; pytest writes ``report.json`` there.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    torch_tier = torch_tier or _TORCH in chapters
    chosen = [f"{_SUITE}.chapters.test_{chapter}" for chapter in chapters if chapter != _TORCH]
    if not chapters:
        chosen = [_SUITE]
    elif torch_tier:
        chosen.append(f"{_SUITE}.torch_tier")
    result = ["-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    # Without any conftest.py, and with names of tests relative to the suite.
    result += ["--noconftest", "--rootdir", str(_FOLDER)]
    result += ["--basetemp", str(folder / "tmp")]
    result += ["-p", f"{_SUITE}.plugin"]
    result += ["--rpc-backend", name, "--rpc-report", str(folder / "report")]
    for option in options:
        result += ["--rpc-option", option]
    if torch_tier:
        result += ["--rpc-tier", "torch"]
    if suite_version is not None:
        result += ["--rpc-suite-version", str(suite_version)]
    if timeout_factor is not None:
        result += ["--rpc-timeout-factor", str(timeout_factor)]
    if maxfail is not None:
        result.append(f"--maxfail={maxfail}")
    if expression:
        result += ["-k", expression]
    if jobs is not None and jobs > 1:
        result += ["-p", "xdist.plugin", "-n", str(jobs)]
    return [*result, "--pyargs", *chosen]


def events(pytest_arguments: Sequence[str]) -> Generator[dict[str, Any]]:
    """Run pytest in a worker and yield what it reports.

    The last event is ``ended``, with pytest's ``status`` and what it ``printed``. When this generator is
    closed, the worker and its own workers have ended.
    """
    from rpc_backends_testing.progress import run_pytest

    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # run no plugins of other packages
    with contextlib.ExitStack() as stack:
        # Without this, Hypothesis creates a folder in the current one.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rpc-backends-"))
        variables["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        template = Template(variables=variables)
        workers = stack.enter_context(Workers(1, seconds=math.inf, fresh=True, template=template))
        worker = workers[0]
        step = worker.start(run_pytest, pytest_arguments)
        try:
            while step.ending is None:
                for _, report in workers.listen([step], silence=_SILENCE):
                    if isinstance(report, News):
                        yield report.value
                if step.ending is None:
                    yield {"event": "silence"}
            ending = step.ending
            status = ending.value if isinstance(ending, Done) else worker.status
            trace = ending.trace if isinstance(ending, StepFailed) else ""
            yield {"event": "ended", "status": status, "printed": worker.output + trace}
        finally:
            if step.ending is None:  # like Ctrl-C, so that pytest ends its workers
                worker.interrupt()
                with contextlib.suppress(WorkerError):
                    step.is_over(_GRACE_PERIOD)


def _run(
    name: str, pytest_arguments: Sequence[str], folder: Path, display: RunDisplay
) -> tuple[dict[str, Any], int]:
    """Run the suite; return its report as JSON, and 0 or the exit status of an interrupted run.

    :raises UsageFailure: no requirement was chosen, or pytest rejects the arguments.
    """
    broken: list[str] = []
    ended: dict[str, Any] = {}
    interrupted = 0
    try:
        with display, contextlib.closing(events(pytest_arguments)) as reported:
            for event in reported:
                if event["event"] == "broken":
                    broken.append(event["text"])
                elif event["event"] == "ended":
                    ended = event
                display.take(event)
    except KeyboardInterrupt:
        interrupted = 128 + signal.SIGINT
    except SystemExit as leaving:  # another signal
        interrupted = int(leaving.code or 1)
    report = folder / "report.json"
    if broken:
        raise Failure("a part of the suite cannot be loaded:\n" + "\n".join(broken))
    if report.exists():
        result: dict[str, Any] = json.loads(report.read_text())
        return result, interrupted
    if interrupted:
        click.echo("The run was interrupted before any requirement was tested.", err=True)
        sys.exit(interrupted)
    status, printed = ended["status"], ended["printed"].strip().splitlines()
    errors = [line for line in printed if line.startswith("ERROR: ")]
    if errors:
        first = errors[0].removeprefix("ERROR: ").removeprefix(f"--rpc-backend {name}: ")
        raise UsageFailure("\n".join([first, *errors[1:]]))
    if status in (0, 5):
        raise UsageFailure("no requirement was chosen: none matches -k and --chapter.")
    text = "\n".join(printed[-40:])
    raise Failure(f"the run ended with status {status} and wrote no report; it printed:\n{text}")


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs > 1 and find_spec("xdist") is None:
        raise UsageFailure(
            "--jobs needs pytest-xdist, which is not installed: pip install pytest-xdist"
        )


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        if not option.partition("=")[0] or "=" not in option:
            raise UsageFailure(f"--option is {option!r}; it must be KEY=VALUE.")


def _check_chapters(chapters: Sequence[str]) -> None:
    for chapter in chapters:
        if chapter != _TORCH and not (_FOLDER / "chapters" / f"test_{chapter}.py").exists():
            raise UsageFailure(
                f"the chapter {chapter} has no requirements in this version of the suite."
            )


def _check_suite_version(version: int | None) -> None:
    if version is not None:
        from rpc_backends_testing.suite import check_version

        try:
            check_version(version, "--suite-version")
        except ValueError as error:
            raise UsageFailure(str(error)) from error


def _check_file(file: Path | None) -> None:
    """Check before the run that its report can be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"the report cannot be written: {error}") from error
    if not os.access(file.parent, os.W_OK):
        raise UsageFailure(f"the report cannot be written: {file.parent} is not writable.")


def _check_badge(file: Path | None) -> None:
    if file is not None and file.suffix not in badges.SUFFIXES:
        suffixes = " or ".join(badges.SUFFIXES)
        raise UsageFailure(f"--badge is {str(file)!r}; the name must end with {suffixes}.")
    _check_file(file)


@click.command(
    "conformance",
    epilog="""\b
Examples:
  rpc-backends conformance TENSORPIPE
  rpc-backends conformance TENSORPIPE --chapter calls --chapter data
  rpc-backends conformance MINE --option num_worker_threads=4 --report conformance/mine
  rpc-backends conformance MINE --tier torch --jobs 2

\b
Exit status: 0 nothing failed, 1 the backend does not conform, 2 there is no such backend or option,
3 with --strict: nothing failed, and a requirement that counts was not tested,
128 + N the run was interrupted by signal N; the report then has the results so far.
""",
)
@click.argument("name")
@click.option(
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the backend, in every test; VALUE is JSON, or else text. Can be repeated.",
)
@click.option(
    "--chapter",
    "chapters",
    type=click.Choice([chapter.name for chapter in CHAPTERS]),
    multiple=True,
    help="Only this chapter. Can be repeated.",
)
@click.option(
    "--tier",
    type=click.Choice(["contract", "torch"]),
    default="contract",
    show_default=True,
    help="`torch` adds torch's own RPC suites: hundreds of tests of four processes each.",
)
@click.option(
    "--report",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write FILE.json and FILE.html, a page to publish.",
)
@click.option(
    "--badge",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a badge for a README: FILE.svg is a picture, FILE.json is for shields.io.",
)
@click.option(
    "--suite-version",
    metavar="N",
    type=click.IntRange(min=1),
    help="Only requirements up to version N count; newer ones run and fail nothing.",
)
@click.option(
    "--timeout-factor",
    metavar="FACTOR",
    type=click.FloatRange(min=0, min_open=True),
    help="Multiply the time limits, on a slow machine.",
)
@click.option(
    "-k", "expression", metavar="EXPR", help="Only tests whose names match, as pytest does."
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Run N tests at a time (needs pytest-xdist).",
)
@click.option(
    "--maxfail",
    metavar="N",
    type=click.IntRange(min=1),
    help="Stop after N failures.",
)
@click.option("-x", "first_failure", is_flag=True, help="Stop after the first failure.")
@click.option(
    "--strict",
    is_flag=True,
    help="End with status 3 if nothing failed, but a requirement that counts could not be tested here.",
)
@json_option
@debug_option
def command(
    name: str,
    options: tuple[str, ...],
    chapters: tuple[str, ...],
    tier: str,
    file: Path | None,
    badge: Path | None,
    suite_version: int | None,
    timeout_factor: float | None,
    expression: str | None,
    jobs: int | None,
    maxfail: int | None,
    first_failure: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Test a backend against the contract for RPC backends.

    Runs the conformance suite in real processes, and reports which requirements and capabilities the
    backend NAME meets. The run ignores pytest's configuration and conftest.py in the current folder.
    """
    _check_jobs(jobs)
    _check_options(options)
    _check_chapters(chapters)
    _check_suite_version(suite_version)
    _check_file(file)
    _check_badge(badge)
    with tempfile.TemporaryDirectory(prefix="rpc-backends-") as place, exit_on_signals():
        folder = Path(place)
        pytest_arguments = arguments(
            name,
            folder,
            options=options,
            chapters=chapters,
            torch_tier=tier == "torch",
            suite_version=suite_version,
            timeout_factor=timeout_factor,
            expression=expression,
            jobs=jobs,
            maxfail=1 if first_failure else maxfail,
        )
        data, interrupted = _run(name, pytest_arguments, folder, RunDisplay(name, quiet=as_json))
        report = _report(data)
        written, failure = _publish(report, file, badge)
    if as_json:
        print_json(data)
    else:
        render(report, written, console())
    if failure is not None:
        raise Failure(f"the report cannot be written: {failure}") from failure
    sys.exit(interrupted or _status(report, strict=strict))


def _status(report: Report, *, strict: bool) -> int:
    if report.conclusion == "does not conform":
        return 1
    return _INCOMPLETE if strict and (report.conclusion == "partial" or report.is_qualified) else 0


def _report(data: dict[str, Any]) -> Report:
    from rpc_backends_testing.results import Report

    return Report.from_json(data)


def _publish(
    report: Report, file: Path | None, badge: Path | None
) -> tuple[tuple[Path, ...], OSError | None]:
    """Write the files; return them, and an error to raise when the report has been shown."""
    written: list[Path] = []
    try:
        if file is not None:
            from rpc_backends_testing.recording import write

            written += write(report, file)
        if badge is not None:
            written.append(badges.write(report, badge))
    except OSError as error:
        return tuple(written), error
    return tuple(written), None
