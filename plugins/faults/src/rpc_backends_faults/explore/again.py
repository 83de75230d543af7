"""Runs a program once with a rule file and judges the run, for tests of past failures."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rpc_backends_faults.explore import invariants as checks
from rpc_backends_faults.explore.processes import Program, RunningProgram, resolved
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.verdicts import judge

_INTERVAL = 0.05


def problems(
    command: Sequence[str],
    rules: Path,
    folder: Path,
    *,
    invariants: Path | None = None,
    accepted: Collection[int] = (0,),
    hang: float = 75.0,
    timeout: float = 600.0,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program with faults; return why the run failed, nothing if it passed.

    With ``invariants``, the program runs without faults first, because invariants compare with that run.
    If it fails then, the problems are those of that run.

    :param rules: the rule file.
    :param folder: an empty folder for logs and output.
    :param invariants: a Python file of invariants.
    :param accepted: the exit statuses with which the program may end.
    :param hang: seconds without an event and without output after which a run hangs.
    :param timeout: seconds that a run may take.
    :param variables: additional environment variables, for example ``RPC_BACKENDS_OVERRIDE``.
    :raises ValueError: the program cannot be started, or the file of invariants has none.
    """
    program = Program(resolved(command), hang, timeout, variables or {})
    loaded = checks.load(invariants)
    baseline = _run(program, folder / "baseline", "") if loaded else None
    if baseline is not None and (causes := judge(baseline, loaded, accepted)):
        return [f"without faults: {cause.title}\n{cause.detail}" for cause in causes]
    run = _run(program, folder / "run", rules.read_text(encoding="utf-8"))
    run.baseline = baseline
    return [f"{cause.title}\n{cause.detail}" for cause in judge(run, loaded, accepted)]


def _run(program: Program, folder: Path, rules: str) -> Run:
    running = RunningProgram(program, folder, rules)
    try:
        while (run := running.poll()) is None:
            time.sleep(_INTERVAL)
    finally:
        running.stop()
    return run
