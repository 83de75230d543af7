"""Running a user's own functions on workers that meet faults, for tests."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_cli.processes import (
    Done,
    Failure,
    Reference,
    Template,
    WorkerContext,
    WorkerError,
    Workers,
)
from rpc_backends_faults import replay

#: Seconds that workers have to shut RPC down together when all went well.
_LEAVING = 10.0
#: What a failed test shows of each worker at most: faults, lines of its traceback, lines that it printed.
_FAULTS, _TRACE, _OUTPUT = 20, 40, 30


@dataclass(frozen=True)
class Outcome:
    """What became of a function on one worker.

    :ivar worker: its name.
    :ivar result: what the function returned, None if it did not.
    :ivar error: the exception's class and text, None if there was none.
    :ivar status: the exit status of a process that ended before it was through, None if it was.
    :ivar traceback: of the exception, empty if there was none.
    :ivar through: whether the function returned.
    :ivar output: what the process has printed.
    :ivar log: the events of its log, see :mod:`.replay`.
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
        """Each fault that its messages met: rule, message type, receiver."""
        requests = {event["id"]: event for event in self.log if event["event"] == "request"}
        return [
            (fault["rule"], requests[event["id"]]["type"], requests[event["id"]]["to"])
            for event in self.log
            if event["event"] in {"request", "end"}
            for fault in event.get("faults", ())
        ]


@dataclass
class Run:
    """A run, for what a failed test shows of it.

    :ivar what: the function, and how it was run.
    :ivar seed: as it was given; the workers' logs have the one that was used.
    :ivar rules: the rules in words, as far as they were given.
    :ivar seconds: how long it took; None if it never began to end.
    :ivar error: what ended it, where not all workers were through.
    """

    what: str
    log: Path
    seed: int
    rules: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float | None = None
    error: str = ""

    def describe(self, test: str) -> str:
        """Return what happened: seed, rules, log; and of each worker its end, faults and output.

        :param test: the test's name for pytest.
        """
        seed = next((one.log[0]["seed"] for one in self.outcomes if one.log), self.seed)
        took = f", {self.seconds:.1f} s" if self.seconds is not None else ""
        lines = [
            f"{self.what}{took}",
            f"seed {seed}. The same again: rpc_faults(..., seed={seed}), or",
            f"  RPC_BACKENDS_FAULTS_SEED={seed} pytest '{test}'",
            "rules:" if self.rules else "rules: none",
            *(f"  {rule}" for rule in self._used_rules() or self.rules),
            f"log: {self.log}",
            f"  rpc-backends faults report {self.log}",
            "  the same faults for the same messages: rpc_faults(..., replay=Path(that folder))",
        ]
        if self.error:
            lines.append(f"the run ended early: {self.error}")
        for outcome in self.outcomes:
            lines += ["", *_description(outcome)]
        return "\n".join(lines)

    def _used_rules(self) -> list[str]:
        """Return the rules that the workers' logs have, with how often each has acted."""
        from rpc_backends_faults.report_page import words

        events = [event for outcome in self.outcomes for event in outcome.log]
        acted = Counter(fault["rule"] for event in events for fault in event.get("faults", ()))
        found: dict[str, None] = {}
        for rule in (rule for event in events for rule in event.get("rules", ())):
            times = {0: "never", 1: "once"}.get(acted[rule["name"]], f"{acted[rule['name']]} times")
            found[f"{rule['name']} ({rule['what']}), acted {times}: {words(rule)}"] = None
        return list(found)


class Runner:
    """Runs functions on groups of workers; the fixture ``rpc_faults``.

    :param folder: for what a run writes.
    :param template: how its processes start; with torch imported by default.
    """

    def __init__(self, folder: Path, template: Template | None = None) -> None:
        self._folder = folder
        self._template = template
        #: What was run, the first first.
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
        """Run ``function(me, *args)`` on each of so many workers, named ``worker0`` ..., in a group.

        :param function: of a module, since other processes run it; ``me`` has ``name``, ``index`` and
            ``size``.
        :param rules: a rule file, or rules with its keys.
        :param seed: in place of the file's.
        :param backend: the group's; what a program that names none gets, by default.
        :param rpc_timeout: of its calls, in seconds.
        :param seconds: that all of it may take; a test that takes longer fails, and shows each stack.
        :param replay: the folder :attr:`log` of an earlier run.
        :returns: what became of it on each, the first worker's first.
        :raises RuleError: rules mean nothing.
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
                # Together, if all are there; one that failed may have left calls unanswered.
                together = all(isinstance(end, Done) for end in ends)
                alive = [worker.index for worker in group if worker.status is None]
                with contextlib.suppress(WorkerError):
                    group.run(_stop, together, on=alive)
            except BaseException as error:
                run.error = (
                    f"{type(error).__name__}: {str(error).splitlines()[0].partition(';')[0]}"
                )
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
            log=[event for _, event in replay.events(log)] if log.exists() else [],
        )


def _checked(
    rules: str | Path | Iterable[Mapping[str, Any]], seed: int | None
) -> str | list[dict[str, Any]]:
    """Return rules as the workers get them, after a look whether they mean anything."""
    from rpc_backends_faults import files, live

    if isinstance(rules, str | Path):
        files.read(Path(rules))
        return str(Path(rules).absolute())
    found = [dict(rule) for rule in rules]
    for rule in found:
        live.make(**rule)
    return found


def _described(
    rules: str | Path | Iterable[Mapping[str, Any]], seed: int | None
) -> tuple[list[str], int]:
    """Return rules in words, and the seed with which they act."""
    from rpc_backends_faults import live
    from rpc_backends_faults.words import explain

    made = live.rule_set(rules)
    words = [f"{rule.name} ({rule.what}): {explain(rule)}" for rule in made.rules]
    return words, seed or made.seed


# --- what a failed test shows -----------------------------------------------------------------------


def _description(outcome: Outcome) -> list[str]:
    """Return the end of a worker, its faults, its traceback and what it printed, in lines."""
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
    return f"returned {outcome.result!r}" if outcome.through else "was not through"


def _fault_lines(outcome: Outcome) -> list[str]:
    """Return a line for each fault: seconds since the log's begin, rule, kind, message, outcome."""
    requests = {event["id"]: event for event in outcome.log if event["event"] == "request"}
    ends = {event["id"]: event for event in outcome.log if event["event"] == "end"}
    lines = []
    for event in outcome.log:
        for fault in event.get("faults", ()):
            request = requests[event["id"]]
            called = f" {request['function']}" if request.get("function") else ""
            answer = ", of the answer" if event["event"] == "end" else ""
            end = ends.get(event["id"], {}).get("outcome", "never over")
            lines.append(
                f"{event['t'] - outcome.log[0]['t']:.4f} s {fault['rule']} ({fault['what']}{answer}): "
                f"{request['type']}{called} to {request['to']}: {end}"
            )
    return lines


def _last(title: str, lines: Sequence[str], most: int) -> list[str]:
    """Return the last lines under a title, which says how many there are."""
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
    function.resolve()  # so that calls of its module's functions find it, whoever is first
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
