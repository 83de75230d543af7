"""Runs a user's functions on workers with injected faults, for tests."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_faults import replay
from rpc_backends_faults.rules import RuleError
from rpc_backends_processes import (
    Done,
    Failure,
    Reference,
    Template,
    WorkerContext,
    WorkerError,
    Workers,
)

#: Seconds that the workers have for a graceful shutdown when all went well.
_LEAVING = 10.0
#: The most that a failed test shows of each worker: faults, lines of traceback, lines of output.
_FAULTS, _TRACE, _OUTPUT = 20, 40, 30


@dataclass(frozen=True)
class Outcome:
    """The result of a function on one worker.

    :ivar worker: the worker's name.
    :ivar result: the value that the function returned; None if it did not return.
    :ivar error: the class and text of the exception; None if there was none.
    :ivar status: the exit status of the process if it ended before the function did; otherwise None.
    :ivar traceback: the traceback of the exception; empty if there was none.
    :ivar through: whether the function returned.
    :ivar output: everything that the process printed.
    :ivar log: the events of its event log, see :mod:`.replay`.
    """

    worker: str
    result: Any = None
    error: str | None = None
    status: int | None = None
    output: str = field(default="", repr=False)
    log: list[dict[str, Any]] = field(default_factory=list, repr=False)
    traceback: str = field(default="", repr=False)
    through: bool = field(default=False, repr=False)

    @property
    def faults(self) -> list[tuple[str, str, str]]:
        """The faults of this worker's messages, each as (rule, message type, receiver)."""
        requests = {event["id"]: event for event in self.log if event["event"] == "request"}
        return [
            (fault["rule"], requests[event["id"]]["type"], requests[event["id"]]["to"])
            for event in self.log
            if event["event"] in {"request", "end"}
            for fault in event.get("faults", ())
        ]


@dataclass
class Run:
    """The record of one run, for the report of a failed test.

    :ivar what: the function, and how it was run.
    :ivar log: the folder of the event logs.
    :ivar seed: the seed that was given; the workers' logs have the seed that was used.
    :ivar rules: the given rules in words.
    :ivar seconds: how long the run took; None if it did not get to its end.
    :ivar error: the error that ended the run early; empty if there was none.
    """

    what: str
    log: Path
    seed: int
    rules: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float | None = None
    error: str = ""

    def describe(self, test: str) -> str:
        """Return a report: seed, rules and log; for each worker its outcome, faults and output.

        :param test: pytest's node id of the test.
        """
        seed = next((outcome.log[0]["seed"] for outcome in self.outcomes if outcome.log), self.seed)
        took = f", {self.seconds:.1f} s" if self.seconds is not None else ""
        lines = [
            f"{self.what}{took}",
            f"seed {seed}. To repeat the run: rpc_faults(..., seed={seed}), or",
            f"  RPC_BACKENDS_FAULTS_SEED={seed} pytest '{test}'",
            "rules:" if self.rules else "rules: none",
            *(f"  {rule}" for rule in self._used_rules() or self.rules),
            f"log: {self.log}",
            f"  rpc-backends faults report {self.log}",
            "  To inject the same faults again: rpc_faults(..., replay=Path(this folder))",
        ]
        if self.error:
            lines.append(f"the run ended early: {self.error}")
        for outcome in self.outcomes:
            lines += ["", *_description(outcome)]
        return "\n".join(lines)

    def _used_rules(self) -> list[str]:
        """Return the rules in the workers' logs, with the number of times that each fired."""
        from rpc_backends_faults.report_page import words

        events = [event for outcome in self.outcomes for event in outcome.log]
        fired = Counter(fault["rule"] for event in events for fault in event.get("faults", ()))
        used: dict[str, None] = {}
        for rule in (rule for event in events for rule in event.get("rules", ())):
            times = {0: "never", 1: "once"}.get(fired[rule["name"]], f"{fired[rule['name']]} times")
            used[f"{rule['name']} ({rule['what']}), fired {times}: {words(rule)}"] = None
        return list(used)


class Runner:
    """Runs functions on groups of workers; the value of the fixture ``rpc_faults``.

    :param folder: the folder for the files of the runs.
    :param template: how the worker processes start; by default they have torch imported.
    """

    def __init__(self, folder: Path, template: Template | None = None) -> None:
        self._folder = folder
        self._template = template
        #: The runs so far, oldest first.
        self.runs: list[Run] = []

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        workers: int = 2,
        rules: str | Path | Iterable[Mapping[str, Any]] = (),
        seed: int | None = None,
        backend: str | None = None,
        rpc_timeout: float = 60.0,
        seconds: float = 120.0,
        replay: Path | None = None,
    ) -> list[Outcome]:
        """Run ``function(me, *args)`` on each worker (``worker0``, ``worker1``, ...) of a group.

        :param function: a module-level function, because other processes run it. ``me`` has ``name``,
            ``index`` and ``size``.
        :param workers: the number of workers.
        :param rules: the path of a rule file, or rules as dicts with the keys of such a file.
        :param seed: overrides the seed of the rule file, unless it is None or 0.
        :param backend: the backend; by default the one of a program that names no backend.
        :param rpc_timeout: timeout of calls in seconds.
        :param seconds: time limit of the run; a test that exceeds it fails and shows all stacks.
        :param replay: the folder :attr:`log` of an earlier run.
        :returns: one outcome per worker, in the order of the workers.
        :raises RuleError: a rule is not valid.
        """
        __tracebackhide__ = True
        here = self._folder / f"run{len(self.runs) + 1}"
        here.mkdir(parents=True)
        self.log = here / "log"
        name = getattr(function, "__qualname__", str(function))
        on = f" on {backend}" if backend else ""
        run = Run(f"{name} on {workers} workers{on}", self.log, seed or 0, [])
        self.runs.append(run)
        env = {"RPC_BACKENDS_FAULTS_LOG": str(self.log)}
        if replay is not None:
            env["RPC_BACKENDS_FAULTS_REPLAY"] = str(replay)
        given = _checked(rules, seed)
        if replay is None:
            run.rules, run.seed = _described(rules, seed)
        else:
            run.rules = [f"those of {replay}, and its faults"]
        meeting = (f"file://{here}/store", backend, rpc_timeout)
        begin = time.monotonic()
        with Workers(workers, env=env, seconds=seconds, template=self._template) as group:
            ends: list[Done | Failure | None] = [None] * workers
            try:
                group.run(_start, Reference.to(function), given, seed or 0, meeting)
                steps = [worker.start(function, *args) for worker in group]
                for index, step in enumerate(steps):
                    try:
                        ends[index] = step.outcome()
                    except WorkerError:  # its process has ended
                        if group.seconds_left() <= 0:
                            raise
                # Graceful only if every function returned: a failed worker may leave calls unanswered.
                together = all(isinstance(end, Done) for end in ends)
                alive = [worker.index for worker in group if worker.status is None]
                with contextlib.suppress(WorkerError):
                    group.run(_stop, together, on=alive)
            except BaseException as error:
                first_line = next(iter(str(error).splitlines()), "")
                run.error = f"{type(error).__name__}: {first_line.partition(';')[0]}"
                raise
            finally:
                run.seconds = time.monotonic() - begin
                run.outcomes = [
                    self._outcome(worker, end) for worker, end in zip(group, ends, strict=True)
                ]
        return run.outcomes

    def _outcome(self, worker: Any, end: Done | Failure | None) -> Outcome:
        log = self.log / replay.file_name(worker.name, 1)
        return Outcome(
            worker.name,
            result=end.value if isinstance(end, Done) else None,
            error=f"{end.kinds[0]}: {end.text}" if isinstance(end, Failure) else None,
            status=worker.status if end is None else None,
            output=worker.output,
            through=isinstance(end, Done),
            traceback=end.trace if isinstance(end, Failure) else "",
            log=_events(log),
        )


def _events(log: Path) -> list[dict[str, Any]]:
    """Return the events of a log; none if there is no log, or a killed worker has left an empty one."""
    try:
        return [event for _, event in replay.events(log)] if log.exists() else []
    except RuleError:
        return []  # the outcome of the worker says more


def _checked(
    rules: str | Path | Iterable[Mapping[str, Any]], seed: int | None
) -> str | list[dict[str, Any]]:
    """Check the rules, and return them in the form that the workers get.

    :raises RuleError: a rule is not valid.
    """
    from rpc_backends_faults import files, live

    if isinstance(rules, str | Path):
        files.read(Path(rules))
        return str(Path(rules).absolute())
    checked = [dict(rule) for rule in rules]
    for rule in checked:
        live.make(**rule)
    return checked


def _described(
    rules: str | Path | Iterable[Mapping[str, Any]], seed: int | None
) -> tuple[list[str], int]:
    """Return the rules in words, and the seed that applies to them."""
    from rpc_backends_faults import live
    from rpc_backends_faults.words import explain

    made = live.rule_set(rules)
    words = [f"{rule.name} ({rule.what}): {explain(rule)}" for rule in made.rules]
    return words, seed or made.seed


# --- the report of a failed test --------------------------------------------------------------------


def _description(outcome: Outcome) -> list[str]:
    """Return lines with a worker's outcome, faults, traceback and output."""
    return [
        f"{outcome.worker}: {_end(outcome)}",
        *_last("  faults", _fault_lines(outcome), _FAULTS),
        *_last("  traceback", outcome.traceback.splitlines(), _TRACE),
        *_last("  printed", outcome.output.splitlines(), _OUTPUT),
    ]


def _end(outcome: Outcome) -> str:
    if outcome.status is not None:
        how = f"signal {-outcome.status}" if outcome.status < 0 else f"status {outcome.status}"
        return f"its process ended with {how} before the function returned"
    if outcome.error is not None:
        return f"raised {outcome.error.partition(chr(10))[0]}"
    return f"returned {outcome.result!r}" if outcome.through else "did not finish"


def _fault_lines(outcome: Outcome) -> list[str]:
    """Return a line for each fault: seconds since the start of the log, rule, kind, message, outcome."""
    requests = {event["id"]: event for event in outcome.log if event["event"] == "request"}
    ends = {event["id"]: event for event in outcome.log if event["event"] == "end"}
    lines = []
    for event in outcome.log:
        for fault in event.get("faults", ()):
            request = requests[event["id"]]
            called = f" {request['function']}" if request.get("function") else ""
            reply = ", of the reply" if event["event"] == "end" else ""
            end = ends.get(event["id"], {}).get("outcome", "never ended")
            lines.append(
                f"{event['t'] - outcome.log[0]['t']:.4f} s {fault['rule']} ({fault['what']}{reply}): "
                f"{request['type']}{called} to {request['to']}: {end}"
            )
    return lines


def _last(title: str, lines: Sequence[str], most: int) -> list[str]:
    """Return a title with the number of lines, and the last ``most`` lines below it."""
    if not lines:
        return []
    shown = f"the last {most} of {len(lines)}" if len(lines) > most else str(len(lines))
    unit = "" if "faults" in title else " lines" if len(lines) != 1 else " line"
    return [f"{title} ({shown}{unit}):", *(f"    {line}" for line in lines[-most:])]


# --- steps of the workers -------------------------------------------------------------------------


def _start(
    me: WorkerContext,
    function: Reference,
    rules: str | list[dict[str, Any]],
    seed: int,
    meeting: tuple[str, str | None, float],
) -> None:
    from torch.distributed import rpc

    import rpc_backends_faults as faults
    from rpc_backends_core.spi.inspection import settings

    url, backend, rpc_timeout = meeting
    function.resolve()  # import the module here, before another worker calls a function of it
    if isinstance(rules, str):
        faults.enable(file=rules, seed=seed)
    else:
        faults.enable(*rules, seed=seed)
    member = rpc.BackendType[backend or settings.value(settings.DEFAULT) or "TENSORPIPE"]
    options = rpc.backend_registry.construct_rpc_backend_options(
        member, rpc_timeout=rpc_timeout, init_method=url
    )
    rpc.init_rpc(
        me.name, backend=member, rank=me.index, world_size=me.size, rpc_backend_options=options
    )


def _stop(me: WorkerContext, together: bool) -> None:
    from torch.distributed import rpc

    from rpc_backends_core.spi import torch_internals

    if torch_internals.has_current_agent():
        rpc.shutdown(graceful=together, timeout=_LEAVING)
