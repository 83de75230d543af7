"""Running functions that may crash or hang in separate processes, and reporting how they ended."""

from __future__ import annotations

import functools
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpc_backends_processes import (
    Done,
    Failure,
    News,
    Step,
    Template,
    Workers,
    exit_on_signals,
    stacks,
)

#: Seconds that the other processes have to end by themselves after one has failed.
_GRACE_PERIOD = 5.0
_LOG_LINES = 15
_PLACES = 3

_IMPORTING = re.compile(r"<frozen importlib|importlib(_metadata)?/")
_OURS = re.compile(r"/rpc_backends_(cli|core|processes)/")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a function in a separate process.

    :ivar result: its return value; None if it did not return.
    :ivar reported: what it reported while running (``me.tell``).
    :ivar error: what went wrong, None if nothing did.
    :ivar traceback: of the exception, if there was one.
    :ivar stage: the last step it announced (``me.doing``).
    :ivar log: the end of what it wrote to stdout and stderr.
    :ivar timed_out: whether it exceeded its time limit.
    :ivar at: its innermost Python stack frames at that time, or at the crash; "" if unknown.
    :ivar when: ``time.monotonic()`` of the exception; infinity without one.
    """

    result: Any
    reported: list[Any]
    error: str | None
    traceback: str | None
    stage: str
    log: str
    timed_out: bool
    at: str
    when: float


def run(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    limit: float,
    *,
    each: bool = False,
) -> list[Outcome]:
    """Run ``function(me, *one)`` for each of ``arguments``, side by side, in processes of their own.

    Where torch has been imported here, they are forks of a process that has imported torch, too.
    Elsewhere they are new interpreters, because the import of torch may hang.

    :param limit: time limit in seconds for all of them; those still running are then killed.
    :param each: whether ``limit`` is the time between two reports instead.
    """
    template = _template(tuple({"OMP_NUM_THREADS": "1", **os.environ}.items()))
    fresh = "torch" not in sys.modules
    seconds = math.inf if each else limit
    with (
        exit_on_signals(),
        Workers(len(arguments), seconds=seconds, fresh=fresh, template=template) as workers,
    ):
        steps = [
            worker.start(function, *arguments_of_worker)
            for worker, arguments_of_worker in zip(workers, arguments, strict=True)
        ]
        reported: dict[Step, list[Any]] = {step: [] for step in steps}
        for step, report in workers.listen(steps, silence=limit, grace=_GRACE_PERIOD):
            if isinstance(report, News):
                reported[step].append(report.value)
            else:
                step.worker.finish()
        # Wait for the processes to exit too: libraries can crash or hang at exit.
        failed = any(not isinstance(step.ending, Done) for step in steps)
        end = time.monotonic() + min(workers.seconds_left(), _GRACE_PERIOD if failed else limit)
        late = {
            step
            for step in steps
            if step.ending is None
            or (
                isinstance(step.ending, Done)
                and not step.worker.wait_for_end(end - time.monotonic())
            )
        }
        if late:
            workers.print_stacks()
        return [_outcome(step, reported[step], step in late) for step in steps]


@functools.cache
def _template(variables: tuple[tuple[str, str], ...]) -> Template:
    return Template(variables=dict(variables))


def _outcome(step: Step, reported: list[Any], timed_out: bool) -> Outcome:
    log, dump = stacks.split(step.worker.output)
    log = "\n".join(log.strip().splitlines()[-_LOG_LINES:])
    at = _innermost(dump)
    ending = step.ending
    failure = ending if isinstance(ending, Failure) else None
    if failure is not None:
        error: str | None = "\n".join([f"{failure.kinds[0]}: {failure.text}", *failure.notes])
    else:
        error = _how_it_ended(step, timed_out)
        if error is not None:
            error += (f", at {at}" if at else "") + (f"; it wrote:\n{log}" if log else "")
    return Outcome(
        result=ending.value if isinstance(ending, Done) else None,
        reported=reported,
        error=error,
        traceback=None if failure is None else failure.trace,
        stage=step.worker.doing or step.worker.last_doing,
        log=log,
        timed_out=timed_out,
        at=at,
        when=math.inf if failure is None else failure.when,
    )


def _how_it_ended(step: Step, timed_out: bool) -> str | None:
    """Return how a process ended abnormally without an exception; None if it ended normally."""
    status = step.worker.status
    if timed_out or status is None:
        return "it exceeded the time limit and was killed"
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}"
    if status > 0:
        return f"the process ended with status {status}"
    return None if isinstance(step.ending, Done) else "the process ended without a result"


def _innermost(dump: str) -> str:
    """Return the main thread's stack, innermost frame first."""
    threads = stacks.parse(dump)
    places: list[str] = []
    others = False
    for file, line, name in threads[-1][1] if threads else ():
        if _IMPORTING.search(file):
            continue
        ours = _OURS.search(file) is not None
        if ours and others:
            break  # the frames outside an import do not matter
        others = others or not ours
        places.append(f"{Path(file).name}:{line} ({name})")
    return " < ".join(places[:_PLACES])
