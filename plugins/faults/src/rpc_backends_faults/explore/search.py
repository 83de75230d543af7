"""Runs a program under one schedule after the other, several at the same time, and shrinks what fails."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rpc_backends_faults import settings
from rpc_backends_faults.explore import folders, reproduce, schedules, watchdog
from rpc_backends_faults.explore.findings import Against, Failure, Findings
from rpc_backends_faults.explore.plan import Plan
from rpc_backends_faults.explore.processes import RunningProgram, backend_variables
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.schedules import Schedule
from rpc_backends_faults.explore.shrinking import Shrunk, shrink
from rpc_backends_faults.explore.verdicts import Cause, judge
from rpc_backends_faults.rules import RuleError

#: Seconds between two looks at the running programs.
_INTERVAL = 0.05
#: How often a schedule that failed once, and then passed, is run again before it is shrunk.
_REPETITIONS = 3
#: How often a shrunk schedule is run on the other backend.
_COMPARISONS = 3
#: How many runs, one after the other, it takes to repeat, shrink and confirm a failure.
_ROUNDS = 8
#: How many programs may run for each job, if most of them wait for a time-out or hang.
_MOST_EACH = 3


@dataclass
class _Job:
    """A program that runs.

    :ivar schedule: its faults.
    :ivar investigation: for which it runs; None for a schedule that is explored.
    :ivar number: which one of the investigation's schedules it is.
    """

    running: RunningProgram
    schedule: Schedule
    investigation: _Investigation | None = None
    number: int = 0


#: A finished run, and the causes for which it failed.
_Judged = tuple[Run, list[Cause]]
#: Yields schedules to run at the same time, and is sent their runs.
_Steps = Generator[list[Schedule], list[_Judged], None]


@dataclass
class _Investigation:
    """A failure that is repeated and shrunk.

    :ivar steps: yields the schedules to run next.
    :ivar waiting: those of them that were not started yet, by number.
    :ivar results: the runs that have ended, by number.
    :ivar elsewhere: whether it runs on the other backend.
    """

    failure: Failure
    steps: _Steps
    waiting: dict[int, Schedule] = field(default_factory=dict)
    results: dict[int, _Judged] = field(default_factory=dict)
    expected: int = 0
    elsewhere: bool = False

    def proceed(self) -> bool:
        """Take the next schedules; return False at the end."""
        runs = [self.results[number] for number in range(self.expected)]
        try:
            schedules = self.steps.send(runs) if runs else next(self.steps)
        except StopIteration:
            return False
        self.waiting, self.results, self.expected = dict(enumerate(schedules)), {}, len(schedules)
        return True


class Search:
    """A search for schedules that make a program fail.

    :ivar findings: what was found so far.
    :ivar has_begun: whether the program passed without faults, and earlier results were removed.
    """

    def __init__(self, plan: Plan, report: Callable[[Search], None] = lambda search: None) -> None:
        """:param report: is called often, to show the progress."""
        self.plan = plan
        self.findings = Findings(
            command=plan.program.command,
            seed=plan.seed,
            kinds=plan.kinds,
            strategy=plan.strategy,
            started=time.time(),
            environment=backend_variables(),
        )
        self.has_begun = False
        self._report = report
        self._begin = time.monotonic()
        self._number = 0
        self._found_number = 0
        self._without_faults: list[Cause] = []
        self._generated = 0
        self._active: list[_Job] = []
        self._investigations: list[_Investigation] = []
        self._baseline: Run | None = None
        self._elsewhere: Run | None = None  # without faults, on the other backend
        self._schedules: Iterator[Schedule] = iter(())

    def seconds_left(self) -> float | None:
        """Return the rest of the time, at least 0; None if there is no limit."""
        if self.plan.seconds is None:
            return None
        return max(0.0, self.plan.seconds - (time.monotonic() - self._begin))

    def stop_exploring(self) -> None:
        """Try no further schedules; what was found is still shrunk."""
        self._schedules = iter(())

    def run(self) -> None:
        """Search until the limit is reached. An interrupt keeps what was found and is raised again.

        :raises ValueError: the program fails without faults, cannot be run, or makes no calls.
        """
        try:
            with watchdog.guard(settings.RUN, self.plan.out.absolute()):
                self._search()
        except KeyboardInterrupt:
            self.findings.interrupted = True
            raise
        finally:
            for job in self._active:
                job.running.stop()
            self._finish()

    def _search(self) -> None:
        self._learn()
        self.has_begun = True
        self._schedules = self._all_schedules()
        while self._start_jobs() or self._active:
            self._poll()
            self._report(self)
            if self.seconds_left() == 0:
                break
        if not self.findings.explored:
            self.findings.error = self._why_nothing()

    def _why_nothing(self) -> str:
        """Return why no run with faults ended. Such a search must not look as if no run had failed."""
        if self.plan.seconds is None or self.seconds_left():
            kinds = ", ".join(self.plan.kinds)
            return f"the program has no message on which a fault of these kinds can act: {kinds}."
        took = self.findings.baseline_seconds
        return (
            f"the budget of {self.plan.seconds:g} s was over before a run with faults had ended. "
            f"The run without faults took {took:.3g} s. Pass a longer --budget: several times as long "
            "as that."
        )

    # --- runs

    def _learn(self) -> None:
        out = self.plan.out
        running = RunningProgram(self.plan.program, folders.first_run(out), Schedule().rule_file())
        try:
            while (run := running.poll()) is None:
                time.sleep(_INTERVAL)
        finally:
            running.stop()
        causes = judge(run, self.plan.invariants, self.plan.accepted)
        if causes:
            raise ValueError(
                f"the program fails without faults: {causes[0].title}. Its output is in "
                f"{run.folder / 'output.txt'}. Faults can be judged only if it passes without them."
            )
        self.findings.places.learn(run)
        if not len(self.findings.places):
            raise ValueError(
                "the program made no RPC calls in which a fault could be injected. Check that it calls "
                f"init_rpc in this environment; its output is in {run.folder / 'output.txt'}."
            )
        run.folder = folders.begin(out)
        self._number += 1
        self._baseline = run
        self.findings.baseline_seconds = run.seconds

    def _start(
        self,
        schedule: Schedule,
        variables: Mapping[str, str] | None = None,
        *,
        diagnose: bool = True,
    ) -> RunningProgram:
        folder = folders.run(self.plan.out, self._number)
        self._number += 1
        given = self.plan.program
        program = replace(
            given, variables={**given.variables, **(variables or {})}, diagnose=diagnose
        )
        return RunningProgram(program, folder, schedule.rule_file())

    def _all_schedules(self) -> Iterator[Schedule]:
        for path in sorted(self.plan.corpus.glob("*.toml")) if self.plan.corpus else ():
            try:
                yield schedules.read(path)
            except RuleError as error:
                self.findings.notes.append(f"{path} was not tried: {error}")
        generated = schedules.generate(
            list(self.findings.places),
            self.plan.kinds,
            self.plan.seed,
            self.plan.strategy,
        )
        for schedule in generated:
            if self.plan.runs is not None and self._generated >= self.plan.runs:
                return
            self._generated += 1
            yield schedule

    def _start_jobs(self) -> bool:
        """Start programs until as many run as may; return whether any was started."""
        started = False
        while self._has_room():
            job = self._next_job()
            if job is None:
                break
            self._active.append(job)
            started = True
        return started

    def _has_room(self) -> bool:
        """Return whether another program may run; one that waits needs no processor."""
        if self.plan.jobs == 1:  # a program may use a fixed port
            return not self._active
        busy = sum(not job.running.is_idle() for job in self._active)
        return busy < self.plan.jobs and len(self._active) < _MOST_EACH * self.plan.jobs

    def _next_job(self) -> _Job | None:
        for investigation in self._investigations:
            if investigation.waiting:
                number = min(investigation.waiting)
                schedule = investigation.waiting.pop(number)
                backend = self.plan.against if investigation.elsewhere else None
                variables = {"RPC_BACKENDS_OVERRIDE": backend} if backend else {}
                # Hangs are told apart by what the workers say.
                asks = investigation.failure.cause.kind == "hang"
                running = self._start(schedule, variables, diagnose=asks)
                return _Job(running, schedule, investigation, number)
        if self._has_enough() or self._must_shrink():
            return None
        generated = next(self._schedules, None)
        return _Job(self._start(generated), generated) if generated is not None else None

    def _must_shrink(self) -> bool:
        """Return whether the rest of the time is needed to repeat and shrink what was found.

        Other runs would take the processors from those that do it.
        """
        left = self.seconds_left()
        longest = max((entry.failure.run.seconds for entry in self._investigations), default=0.0)
        return left is not None and left < _ROUNDS * longest

    def _has_enough(self) -> bool:
        """Return whether enough failures were found; one that did not repeat does not count."""
        repeated = [failure for failure in self.findings.failures if failure.shrunk.may_repeat()]
        return self.plan.failures is not None and len(repeated) >= self.plan.failures

    def _poll(self) -> None:
        ended = False
        for job in [*self._active]:
            run = job.running.poll()
            if run is None:
                continue
            ended = True
            folder = run.folder
            self._active.remove(job)
            elsewhere = job.investigation is not None and job.investigation.elsewhere
            run.baseline = self._elsewhere if elsewhere else self._baseline
            causes = judge(run, self.plan.invariants, self.plan.accepted)
            self.findings.runs += 1
            self.findings.places.cover(run)
            if job.investigation is None:
                self._explored(job.schedule, run, causes)
            else:
                job.investigation.results[job.number] = run, causes
                self._resume(job.investigation)
            if not self.plan.keep and run is not self._elsewhere:
                shutil.rmtree(folder, ignore_errors=True)  # that of a new failure was moved
        if not ended:
            time.sleep(_INTERVAL)

    # --- failures

    def _explored(self, schedule: Schedule, run: Run, causes: Sequence[Cause]) -> None:
        self.findings.explored += 1
        causes = [cause for cause in causes if not _is_among(cause, self._without_faults)]
        if not causes:
            return
        self.findings.failing_runs += 1
        new = []
        for cause in causes:
            known = [failure for failure in self.findings.failures if failure.cause.is_same(cause)]
            if known:
                known[0].times += 1
            else:
                new.append(cause)
        # The last one takes the folder of the run, the others a copy.
        for cause in new:
            self._found(schedule, run, cause, copy=cause is not new[-1])

    def _found(self, schedule: Schedule, run: Run, cause: Cause, *, copy: bool) -> None:
        self._found_number += 1
        number = self._found_number
        folder = self.plan.out / "failures" / f"{number:02}-{reproduce.slug(cause.key)}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if copy:
            shutil.copytree(run.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("tmp"))
        else:
            shutil.move(run.folder, folder)
            run.folder = folder
        failure = Failure(
            number=number,
            cause=cause,
            folder=folder,
            run=run,
            shrunk=Shrunk(schedule),
            origin=schedule.origin,
            after=self.findings.explored,
            seconds=round(time.monotonic() - self._begin, 1),
        )
        self.findings.failures.append(failure)
        investigation = _Investigation(failure, self._investigate(failure))
        investigation.proceed()
        self._investigations.append(investigation)
        # At once, in case that there is no time to shrink it.
        reproduce.write(failure, self.plan)

    def _investigate(self, failure: Failure) -> _Steps:
        """Repeat and shrink a failure, unless the program fails so without faults, too.

        A run without faults at about the same time tells a failure from one that the load of the machine
        causes, or chance.
        """
        (_, causes), (_, again) = yield [Schedule(), failure.shrunk.schedule]
        if _is_among(failure.cause, causes):
            failure.doubt = "a run without faults failed so, too"
            self._without_faults.append(failure.cause)
            return
        shrunk = failure.shrunk
        shrunk.repeated = True
        shrunk.again = _is_among(failure.cause, again)
        if not shrunk.again:  # shrinking would be in vain
            runs = yield [shrunk.schedule] * _REPETITIONS
            shrunk.of = 1 + len(runs)
            shrunk.failed = sum(_is_among(failure.cause, causes) for _, causes in runs)
            shrunk.again = shrunk.failed > 0
        if not shrunk.again:
            if failure.cause.kind == "hang":
                failure.doubt = f"{shrunk.of} more runs with the same faults did not hang so"
            return
        shrunk.failed = shrunk.of = 0  # of a larger schedule
        steps = shrink(shrunk, failure.run, self.plan.confirmations)
        failed: list[bool] = []
        while True:
            try:
                schedules = steps.send(failed) if failed else next(steps)
            except StopIteration:
                return
            runs = yield schedules
            failed = [_is_among(failure.cause, causes) for _, causes in runs]

    def _compare(self, against: Against, failure: Failure) -> _Steps:
        """Run the shrunk schedule on the other backend, on which the program must pass without faults."""
        failure.against = against
        if self._elsewhere is None:
            ((run, causes),) = yield [Schedule()]
            if causes:
                against.problem = causes[0].title
                return
            self._elsewhere = run
        for _, causes in (yield [failure.shrunk.schedule] * _COMPARISONS):
            against.failed += bool(causes)
            against.of += 1
        against.complete = True

    def _resume(self, investigation: _Investigation) -> None:
        """Go on when all of the schedules have run."""
        failure = investigation.failure
        if len(investigation.results) < investigation.expected or investigation.proceed():
            return
        if self.plan.against is not None and not investigation.elsewhere and not failure.doubt:
            investigation.elsewhere = True
            investigation.steps = self._compare(Against(self.plan.against), failure)
            investigation.results, investigation.expected = {}, 0
            investigation.proceed()
            return
        self._investigations.remove(investigation)
        self._close(failure)

    def _close(self, failure: Failure) -> None:
        if failure.cause.kind == "hang" and not failure.doubt and not failure.shrunk.again:
            failure.doubt = f"{failure.shrunk.stopped} before it was repeated"
            reproduce.keep(failure, self.plan)  # so that a later search tries it first
        if failure.doubt:
            self._withdraw(failure)
            return
        reproduce.write(failure, self.plan)
        reproduce.keep(failure, self.plan)

    def _withdraw(self, failure: Failure) -> None:
        """Turn a failure that may not be one into a note."""
        self.findings.failures.remove(failure)
        folder = self.plan.out / "doubtful" / failure.folder.name
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(failure.folder, folder)
        failure.folder = folder
        self.findings.notes.append(
            f"Not counted as a failure: {failure.cause.title} ({failure.doubt}). What was seen is in "
            f"{reproduce.relative(folder, self.plan.out)}."
        )

    def _finish(self) -> None:
        stopped = "the search was interrupted" if self.findings.interrupted else "the time was over"
        for investigation in self._investigations:
            failure = investigation.failure
            failure.shrunk.stopped = stopped
            if failure.against is not None:
                failure.against.stopped = stopped
            self._close(failure)
        self.findings.seconds = round(time.monotonic() - self._begin, 1)


def _is_among(cause: Cause, causes: Sequence[Cause]) -> bool:
    """Return whether a run failed for this cause."""
    return any(cause.is_same(known) for known in causes)
