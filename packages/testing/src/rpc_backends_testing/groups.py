"""Groups of workers that run the backend under test, in separate processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rpc_backends_core.spi.inspection import default_registry
from rpc_backends_processes import Template, WorkerError, Workers
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.checks import deviate, run_step
from rpc_backends_testing.subject import Subject
from rpc_backends_testing.time_limits import GIVE_UP_AFTER, TimeLimits

#: The time limit of a test in seconds; a call that never returns takes as long.
SECONDS = 30.0


@functools.cache
def template(modules: tuple[str, ...]) -> Template:
    """Return a template for workers that has the suite imported and the backends discovered."""
    return Template(preload=("pytest", *modules), prepare=[find_backends])


def find_backends() -> None:
    """Discover the installed backends, so that not every worker has to."""
    default_registry().names()


class Groups:
    """Starts the groups of one test.

    :param subject: the backend under test.
    :param folder: a folder of this test alone, for the files of init methods.
    :param chapter: the chapter of the test.
    :param limits: how long the test may take; the default is its own time limit.
    :param modules: what the template of the workers imports.
    """

    def __init__(
        self,
        subject: Subject,
        folder: Path,
        *,
        chapter: str = "",
        limits: TimeLimits | None = None,
        modules: tuple[str, ...] = (),
    ) -> None:
        self.subject = subject
        self._chapter = chapter
        self._limits = limits or TimeLimits()
        self._folder = folder
        self._modules = modules
        self._count = itertools.count()

    @property
    def ending(self) -> float:
        """Seconds that a thread has to end, after its work is done."""
        return self._limits.ending

    def place(self) -> str:
        """Return a new init method: a file."""
        return f"file://{self._folder}/meeting{next(self._count)}"

    def workers(self, size: int, seconds: float = SECONDS, **settings: Any) -> Workers:
        """Return workers without RPC, for a ``with`` block."""
        settings.setdefault("template", template(self._modules))
        settings["env"] = {**self._limits.environ(), **(settings.get("env") or {})}
        return Workers(size, seconds=self._limits.test(self._chapter, seconds), **settings)

    @contextlib.contextmanager
    def running(self, size: int, seconds: float = SECONDS, **options: Any) -> Iterator[Workers]:
        """Start a static group; all workers shut down gracefully unless the block raises.

        :param options: options of the backend, in addition to the subject's.
        :raises DeviationError: no group has formed in time so far, and several have been tried.
        """
        if self._limits.hopeless:
            raise deviate(
                f"start a group of {size}",
                "a group",
                f"not tried, because none of the first {GIVE_UP_AFTER} groups formed in time",
            )
        with self.workers(size, seconds) as workers:
            self._start(workers, options)
            yield workers
            workers.run(worker_tasks.leave)

    def _start(self, workers: Workers, options: Mapping[str, Any]) -> None:
        try:
            with workers.within(self._limits.start()):
                workers.run(worker_tasks.join, self.subject, self.place(), **options)
        except WorkerError as error:
            if error.late:
                self._limits.record_start(False)
            raise
        self._limits.record_start(True)

    def run_in_first(
        self, size: int, step: Callable[..., Any], seconds: float, options: Any, arguments: Any
    ) -> None:
        """Run ``step`` in worker 0 of a static group."""
        with self.running(size, seconds, **options) as workers:
            workers[0].call(checked, _Step(step), **arguments)


class _Step:
    """A step as a reference. Pickle would look it up by name, and find the test that has replaced it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        from rpc_backends_processes import Reference

        self.reference = Reference.to(function)


def checked(me: Any, step: _Step, **arguments: Any) -> Any:
    """Run a step in a worker; its checks report what they do."""
    return run_step(me, step.reference.resolve(), **arguments)
