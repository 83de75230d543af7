"""The command ``rpc-backends bench``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from rpc_backends_bench import peers as peer_modules
from rpc_backends_bench import plan as plans
from rpc_backends_bench import subjects as requested
from rpc_backends_bench.awake import DEVICE, kept_awake
from rpc_backends_bench.compare import Comparison, compare
from rpc_backends_bench.plan import Plan
from rpc_backends_bench.results import FormatError, Results
from rpc_backends_bench.subjects import Subject, SubjectError
from rpc_backends_cli import (
    Failure,
    console,
    debug_option,
    json_option,
    print_json,
    require_loadable,
    stdout_for_json,
    timeout_option,
)

_USAGE, _INTERRUPTED = 2, 130
#: Variables that must be set before this process imports torch, because it hosts the groups' stores.
#: torch's store looks up the host name of each worker that connects, under every backend. If a name
#: server does not answer, that costs large groups seconds. The first variable stops the look-ups; the
#: second hides torch's warning about them.
_ENVIRON = {"RES_OPTIONS": "attempts:0", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class UsageFailure(Failure):
    """An argument is invalid, or what it names is not available."""

    exit_code = _USAGE


@click.command(
    "bench",
    epilog="""\b
Examples:
  rpc-backends bench ZEROMQ --quick                 against TENSORPIPE, about a minute
  rpc-backends bench TENSORPIPE --out bench         against torch's own, with a page and plots
  rpc-backends bench ZEROMQ:num_worker_threads=4 ZEROMQ --only latency
  rpc-backends bench ZEROMQ --compare bench/results.json

Exit status: 0 everything was measured, 1 a backend failed, 2 an argument is invalid, 130 interrupted.
""",
)
@click.argument("names", metavar="NAME[:KEY=VALUE,...]...", nargs=-1)
@click.option(
    "--vs",
    "reference",
    metavar="NAME",
    help="The reference that the others are compared with, or its table in FILE.  [default: TENSORPIPE; "
    "if that is the only NAME, TENSORPIPE@torch; if it is not among several NAMEs, the first of them]",
)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with more backends: a table for each, with the backend's name and options.",
)
@click.option(
    "--quick", is_flag=True, help="Few rounds, small groups: shows large differences only."
)
@click.option(
    "--only",
    multiple=True,
    metavar="ROW",
    help="Measure only these rows, for example `latency`, `latency.noop` or `size.*`. Can be repeated.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write results.json, an HTML page (index.html) and plots (PNG) to DIR.",
)
@click.option(
    "--compare",
    "old_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OLD.json",
    help="Show what changed beyond the noise since the run in OLD.json.",
)
@click.option(
    "--largest",
    type=click.IntRange(min=2),
    metavar="N",
    help="Start no group of more than N workers.  [default: 64; with --quick 8]",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice([*peer_modules.KNOWN, "none"]),
    help="Also measure calls to Ray actors or Monarch endpoints, without torch's RPC. Can be repeated.  "
    "[default: those that are installed]",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the order of the blocks."
)
@click.option(
    "--no-pin",
    is_flag=True,
    help="Let the system choose the cores; by default callers and callees run on different cores.",
)
@click.option(
    "--awake",
    is_flag=True,
    help="Keep idle cores from sleeping (Linux, as root). Makes the ratios of backends that sleep "
    "between messages repeatable.",
)
@timeout_option("Time limit for loading a package.")
@json_option
@debug_option
def command(
    names: tuple[str, ...],
    reference: str | None,
    file: Path | None,
    quick: bool,
    only: tuple[str, ...],
    out: Path | None,
    old_file: Path | None,
    largest: int | None,
    peers: tuple[str, ...],
    seed: int,
    no_pin: bool,
    awake: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Measure backends side by side.

    Measures latency, throughput, message sizes, processor time, and how groups form. Two or more backends
    take turns with short blocks, so drift of the machine cancels in their ratios. NAME@torch is torch's
    own backend, in processes without this package. The same NAME twice shows the method's error. Ctrl-C
    keeps the results so far.
    """
    set_environment()
    plan = _plan(quick=quick, only=only, largest=largest)
    plan = replace(plan, seed=seed, pinned=not no_pin)
    _check_out(out)
    _check_awake(awake)
    old = _read(old_file)
    with stdout_for_json(as_json):  # loads packages, which may print
        subjects = _subjects(names, reference, file, _peers(peers), timeout)
    results, interrupted = measure_plan(plan, subjects, awake=awake, quiet=as_json)
    comparison = None if old is None else compare(old, results)
    written, failure = _write(results, comparison, out)
    if as_json:
        more = {} if comparison is None else {"comparison": comparison.to_json()}
        print_json({**results.to_json(), **more})
    else:
        _show(results, comparison, written)
    if failure is not None:
        raise Failure(f"the files of the run cannot be written to {out}: {failure}") from failure
    if interrupted:
        sys.exit(_INTERRUPTED)
    sys.exit(1 if results.problems else 0)


def set_environment() -> None:
    """Set the variables that this process needs before it imports torch."""
    for name, value in _ENVIRON.items():
        os.environ.setdefault(name, value)


def _check_out(out: Path | None) -> None:
    """Fail now, and not after a run of minutes, if the files of the run cannot be written."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        raise UsageFailure(f"--out {out} cannot be written to: {error}") from error


def _check_awake(wanted: bool) -> None:
    try:
        with kept_awake(wanted):
            pass
    except OSError as error:
        raise UsageFailure(
            f"--awake: {DEVICE} cannot be written to ({error.strerror}). --awake needs Linux and root. "
            "Leave it out to measure with cores that may sleep."
        ) from error


def _read(file: Path | None) -> Results | None:
    if file is None:
        return None
    try:
        return Results.read(file)
    except FormatError as error:
        raise UsageFailure(f"--compare {error}") from error


def _peers(names: Sequence[str]) -> list[Subject]:
    """Return the peers to measure: those that ``names`` request, else all that are installed."""
    installed, known = peer_modules.installed(), peer_modules.KNOWN
    for name in names:
        if name != "none" and name not in installed:
            raise UsageFailure(
                f"--peer {name}: {name} is not installed. Run pip install {known[name].distribution}"
            )
    chosen = [name for name in names if name != "none"] if names else installed
    return [Subject(known[name].label, name, peer=name) for name in dict.fromkeys(chosen)]


def _subjects(
    names: Sequence[str],
    reference: str | None,
    file: Path | None,
    peers: Sequence[Subject],
    limit: float,
) -> list[Subject]:
    """Return what is measured, after loading each backend once to check that it works.

    :param limit: time limit in seconds for loading a package.
    """
    try:
        named = [requested.parse(name) for name in names]
        named += requested.read(file) if file else []
        chosen = None if reference is None else requested.find(reference, named)
        requested.check_named(named)
    except SubjectError as error:
        raise UsageFailure(str(error)) from error
    import torch.distributed.rpc  # noqa: F401 - registers torch's own backends

    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import records

    try:
        plugins = [record.name for record in records() if record.source == "plugin"]
        subjects = requested.arrange(named, chosen, plugins, peers)
        require_loadable(
            [subject.name for subject in subjects if not subject.peer and not subject.own], limit
        )
        for subject in (candidate for candidate in subjects if not candidate.peer):
            _check(subject)
    except (SubjectError, RpcBackendsError) as error:
        raise UsageFailure(str(error)) from error
    return subjects


def _check(subject: Subject) -> None:
    from torch.distributed import rpc

    from rpc_backends_core.spi import inspection
    from rpc_backends_core.spi.inspection import default_registry

    if subject.own:
        if subject.name not in inspection.BUILTIN_CAPABILITIES:
            known = ", ".join(inspection.BUILTIN_CAPABILITIES)
            raise SubjectError(f"torch has no backend {subject.name!r} of its own. It has {known}.")
        return
    default_registry().backend(subject.name)
    try:
        rpc.backend_registry.construct_rpc_backend_options(
            rpc.BackendType[subject.name], **subject.options
        )
    except (TypeError, ValueError) as error:
        raise SubjectError(
            f"{subject.label}: the backend rejects the options: {type(error).__name__}: {error}"
        ) from error


def _plan(*, quick: bool, only: Sequence[str], largest: int | None) -> Plan:
    try:
        chosen = plans.choose(only)
    except ValueError as error:
        raise UsageFailure(f"--only: {error}") from error
    plan = replace(plans.QUICK if quick else plans.FULL, only=chosen)
    return plan if largest is None else plan.up_to(largest)


def measure_plan(
    plan: Plan, subjects: list[Subject], *, awake: bool, quiet: bool
) -> tuple[Results, bool]:
    """Measure; return the results, and whether the run was interrupted."""
    from rpc_backends_bench import machine, measure
    from rpc_backends_bench.progress import Progress
    from rpc_backends_processes import exit_on_signals

    about = [_about(subject) for subject in subjects]
    packages = tuple(
        dict.fromkeys(backend["distribution"] for backend in about if backend["distribution"])
    )
    here = {**machine.describe(packages), "busy_before": machine.busy_share(), "awake": awake}
    results = Results.begin(plan, here, about, subjects[-1].label)
    expected = measure.expected(plan, len(subjects))
    interrupted = False
    showing = Progress(expected, quiet=quiet)
    with exit_on_signals(), kept_awake(awake), showing as progress:
        try:
            measure.run(plan, subjects, results, progress, _supports_dynamic_groups)
        except KeyboardInterrupt:
            interrupted = True
    results.machine = {**here, **machine.finished()}
    return results, interrupted


def _about(subject: Subject) -> dict[str, Any]:
    from rpc_backends_core.spi.inspection import record

    if subject.own or subject.peer:
        peer = peer_modules.KNOWN.get(subject.peer)
        distribution = peer.distribution if peer else "torch"
        return {**asdict(subject), "distribution": distribution}
    return {**asdict(subject), "distribution": record(subject.name).distribution}


def _supports_dynamic_groups(subject: Subject) -> bool:
    """Return whether a backend supports dynamic groups."""
    from rpc_backends_core.spi import Capability, inspection
    from rpc_backends_core.spi.inspection import default_registry

    if subject.own:
        return Capability.DYNAMIC_GROUPS in inspection.BUILTIN_CAPABILITIES[subject.name]
    return Capability.DYNAMIC_GROUPS in default_registry().backend(subject.name).capabilities


def _write(
    results: Results, comparison: Comparison | None, out: Path | None
) -> tuple[list[Path], OSError | None]:
    """Write the files; return them, or an error to raise when the results have been shown."""
    if out is None:
        return [], None
    from rpc_backends_bench.writing import write

    try:
        return write(results, comparison, out), None
    except OSError as error:
        return [], error


def _show(results: Results, comparison: Comparison | None, written: list[Path]) -> None:
    from rpc_backends_bench.table import render

    to = console()
    render(results, comparison, to)
    for file in written:
        to.print(f"wrote {file}", soft_wrap=True)
