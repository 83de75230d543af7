"""``rpc-backends conformance NAME``: the conformance suite, run by pytest in a process of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rpc_backends_testing as testing
from rpc_backends_cli import Failure, console, debug_option, json_option
from rpc_backends_cli.processes import Done, News, Template, WorkerError, Workers, exit_on_signals
from rpc_backends_cli.processes import Failure as StepFailed
from rpc_backends_testing import badge as badges
from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.console import Progress, render

if TYPE_CHECKING:
    from rpc_backends_testing.results import Report

#: Seconds that the run has to stop its workers after Ctrl-C.
_GRACE_PERIOD = 10.0
_USAGE = 2
_SUITE = "rpc_backends_testing"
_TORCH = "torch"  # the chapter that is a tier
_FOLDER = Path(testing.__file__).parent


class UsageFailure(Failure):
    """What was asked for cannot be done."""

    exit_code = _USAGE


def arguments(
    name: str,
    folder: Path,
    *,
    options: Sequence[str] = (),
    chapters: Sequence[str] = (),
    torch_tier: bool = False,
    suite_version: int | None = None,
    patience: float | None = None,
    expression: str | None = None,
    jobs: int | None = None,
) -> list[str]:
    """Return pytest's arguments for a run of the suite that nothing around it changes.

    :param folder: an empty one; the report is written there as ``report.json``.
    """
    (folder / "pytest.ini").write_text("[pytest]\n")
    torch_tier = torch_tier or _TORCH in chapters
    chosen = [f"{_SUITE}.chapters.test_{chapter}" for chapter in chapters if chapter != _TORCH]
    if not chapters:
        chosen = [_SUITE]
    elif torch_tier:
        chosen.append(f"{_SUITE}.torch_tier")
    result = ["-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider"]
    # No conftest.py, not even from the current folder; and tests are named by their place in the suite.
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
    if patience is not None:
        result += ["--rpc-patience", str(patience)]
    if expression:
        result += ["-k", expression]
    if jobs is not None and jobs > 1:
        result += ["-p", "xdist.plugin", "-n", str(jobs)]
    return [*result, "--pyargs", *chosen]


def events(pytest_arguments: Sequence[str]) -> Generator[dict[str, Any]]:
    """Run pytest in a worker and yield what it reports.

    The last is ``ended`` with pytest's ``status`` and what it ``printed``. When this generator is
    left, in whatever way, the worker and its own workers have ended.
    """
    from rpc_backends_testing.progress import run_pytest

    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others' plugins have no part in it
    template = Template(variables=variables)
    with Workers(1, seconds=math.inf, fresh=True, template=template) as workers:
        worker = workers[0]
        step = worker.start(run_pytest, pytest_arguments)
        try:
            for _, report in workers.listen([step]):
                if isinstance(report, News):
                    yield report.value
            ending = step.ending
            status = ending.value if isinstance(ending, Done) else worker.status
            trace = ending.trace if isinstance(ending, StepFailed) else ""
            yield {"event": "ended", "status": status, "printed": worker.output + trace}
        finally:
            if step.ending is None:  # as Ctrl-C would, so that it ends its workers
                worker.interrupt()
                with contextlib.suppress(WorkerError):
                    step.is_over(_GRACE_PERIOD)


def _run(
    name: str, pytest_arguments: Sequence[str], folder: Path, progress: Progress
) -> dict[str, Any]:
    """Run the suite and return its report as JSON.

    :raises UsageFailure: there was nothing to run, or not with these arguments.
    """
    broken: list[str] = []
    ended: dict[str, Any] = {}
    with progress, contextlib.closing(events(pytest_arguments)) as reported:
        for event in reported:
            if event["event"] == "broken":
                broken.append(event["text"])
            elif event["event"] == "ended":
                ended = event
            progress.take(event)
    report = folder / "report.json"
    if broken:
        raise Failure("a part of the suite cannot be loaded:\n" + "\n".join(broken))
    if report.exists():
        result: dict[str, Any] = json.loads(report.read_text())
        return result
    status, printed = ended["status"], ended["printed"].strip().splitlines()
    errors = [line for line in printed if line.startswith("ERROR: ")]
    if errors:
        first = errors[0].removeprefix("ERROR: ").removeprefix(f"--rpc-backend {name}: ")
        raise UsageFailure("\n".join([first, *errors[1:]]))
    if status in (0, 5):
        raise UsageFailure("no requirement was chosen: -k and --chapter leave none.")
    text = "\n".join(printed[-40:])
    raise Failure(f"the run ended with status {status} and without a report; it printed:\n{text}")


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
            raise UsageFailure(f"the chapter {chapter} has no requirements in this version.")


def _check_file(file: Path | None) -> None:
    """Find out before a run of minutes that its report could not be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"the report cannot be written: {error}") from error
    if not os.access(file.parent, os.W_OK):
        raise UsageFailure(f"the report cannot be written: {file.parent} may not be written to.")


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

Exit status: 0 nothing failed, 1 the backend does not conform, 2 there is no such backend or option.
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
    help="Requirements newer than version N are tried, and fail nothing.",
)
@click.option(
    "--patience",
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
    patience: float | None,
    expression: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Test a backend against the contract for RPC backends.

    Runs the conformance suite, each test in real processes, and says which chapters of the contract the
    backend NAME keeps and what of its capabilities holds. Nothing of the current folder (pytest's
    configuration, conftest.py) has a part in it.
    """
    _check_jobs(jobs)
    _check_options(options)
    _check_chapters(chapters)
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
            patience=patience,
            expression=expression,
            jobs=jobs,
        )
        data = _run(name, pytest_arguments, folder, Progress(name, quiet=as_json))
        report = _report(data)
        written = _publish(report, file, badge)
    if as_json:
        click.echo(json.dumps(data, indent=2))
    else:
        render(report, written, console())
    sys.exit(1 if report.verdict == "does not conform" else 0)


def _report(data: dict[str, Any]) -> Report:
    from rpc_backends_testing.results import Report

    return Report.from_json(data)


def _publish(report: Report, file: Path | None, badge: Path | None) -> tuple[Path, ...]:
    written: list[Path] = []
    if file is not None:
        from rpc_backends_testing.recording import write

        written += write(report, file)
    if badge is not None:
        written.append(badges.write(report, badge))
    return tuple(written)
