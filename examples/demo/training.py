"""Runs the demo: prepares the data, then starts the processes of each run."""

from __future__ import annotations

import contextlib
import math
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from demo import fault_rules, worker
from demo.backends import Choice
from demo.dataset import prepare
from demo.plan import SERVER, WORKERS, Plan
from demo.results import EpochDone, Run, StepDone
from demo.view import View
from rpc_backends_processes import (
    Ended,
    Failure,
    News,
    Step,
    Template,
    Worker,
    Workers,
    environ,
)

SILENCE = 180.0  # seconds without any report after which the run fails
GRACE_PERIOD = 1.0  # seconds that the other workers have to report after the first failure
LOG_LINES = 20


class WorkerFailedError(Exception):
    """A worker failed or stopped reporting; the text names it and shows its traceback."""


def play(choice: Choice, epochs: int, seed: int, view: View) -> list[Run]:
    """Train once on each chosen backend, one after another; return the runs.

    :raises MissingDependencyError: the data set is not installed.
    :raises WorkerFailedError: a worker failed; all processes are terminated.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="rpc-backends-demo-") as folder:
        learn, test = prepare(Path(folder), seed)
        view.opening(version("torch"), choice, learn, test)
        for number, (origin, faults) in enumerate(choice.parts, start=1):
            place = Path(folder, f"{number}-{origin.backend}")
            place.mkdir()
            plan = Plan(origin.backend, str(place), folder, epochs=epochs, seed=seed, faults=faults)
            run = Run(origin, faults)
            begin = time.perf_counter()
            with view.run(run, f"{number}/{len(choice.parts)}") as drawing, start(plan) as workers:
                for report in train(workers, plan):
                    if isinstance(report, StepDone):
                        drawing.advanced(report, epochs)
                    elif epoch := run.add(report):
                        drawing.epoch(epoch)
            run.seconds = time.perf_counter() - begin
            runs.append(run)
    view.closing(runs)
    return runs


@contextlib.contextmanager
def start(plan: Plan) -> Iterator[Workers]:
    """Start the processes of a run, one for each of WORKERS; they end with the block.

    Their environment has the plan's faults, and no other settings for backends or faults.
    """
    variables = {
        name: value
        for name, value in environ().items()
        if not name.startswith(fault_rules.VARIABLE)
    }
    if plan.faults.by:
        variables[fault_rules.VARIABLE] = str(fault_rules.write(plan))
    if any(interface == "lo" for _, interface in socket.if_nameindex()):
        variables.setdefault("TP_SOCKET_IFNAME", "lo")
    # The workers are forks of one process that has imported torch, so that torch is imported once.
    with (
        Template(preload=[worker.__name__], variables=variables) as template,
        Workers(len(WORKERS), seconds=math.inf, template=template) as workers,
    ):
        yield workers


def train(workers: Workers, plan: Plan, silence: float = SILENCE) -> Iterator[StepDone | EpochDone]:
    """Train according to the plan; yield the trainers' reports.

    :param silence: seconds without any report after which the run fails.
    :raises WorkerFailedError: a worker failed, or no worker reported for too long.
    """
    trainers = [process for process in workers if WORKERS[process.index] != SERVER]
    for function, chosen in (
        (worker.join, workers),
        (worker.train, trainers),
        (worker.leave, workers),
    ):
        steps = [process.start(function, plan) for process in chosen]
        for _, report in workers.listen(steps, silence=silence, grace=GRACE_PERIOD):
            if isinstance(report, News):
                yield report.value
        _check(workers, steps, silence)
    for process in workers:
        process.finish()
    silent = [process for process in workers if not process.wait_for_end(silence)]
    _raise(
        {process: Ended(process.status) for process in workers if process.status}, silent, silence
    )


def _check(workers: Workers, steps: list[Step], silence: float) -> None:
    """Raise an error unless all ``steps`` have succeeded."""
    endings = {step.worker: step.ending for step in steps}
    failed = {
        process: ending
        for process, ending in endings.items()
        if isinstance(ending, Failure | Ended)
    }
    silent = [process for process, ending in endings.items() if ending is None]
    if (
        failed or silent
    ):  # a worker without a step may be the cause: it only reports that it has ended
        idle = ((process, process.hear(0)) for process in workers if process not in endings)
        failed |= {process: report for process, report in idle if isinstance(report, Ended)}
    _raise(failed, silent, silence)


def _raise(failed: Mapping[Worker, Failure | Ended], silent: list[Worker], silence: float) -> None:
    """Raise an error if a worker has failed or is silent.

    Workers that ended without an exception come first: they usually cause the errors of the others.
    """
    if failed:
        ordered = sorted(failed.items(), key=lambda item: isinstance(item[1], Failure))
        raise WorkerFailedError("\n\n".join(_complaint(*item) for item in ordered))
    if silent:
        names = ", ".join(sorted(WORKERS[process.index] for process in silent))
        raise WorkerFailedError(f"no report for {silence:g} s from {names}")


def _complaint(process: Worker, ending: Failure | Ended) -> str:
    name = WORKERS[process.index]
    if isinstance(ending, Failure):
        return f"{name} failed:\n{ending.trace.rstrip()}"
    log = "\n".join(process.output.splitlines()[-LOG_LINES:]) or "(it printed nothing)"
    return f"{name} ended with status {ending.status}:\n{log}"
