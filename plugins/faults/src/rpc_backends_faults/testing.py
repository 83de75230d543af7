"""Running a user's own functions on workers that meet faults, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_cli.processes import Done, Failure, Me, Reference, Template, WorkerError, Workers
from rpc_backends_faults import replay

#: Seconds that workers have to shut RPC down together when all went well.
_LEAVING = 10.0


@dataclass(frozen=True)
class Outcome:
    """What became of a function on one worker.

    :ivar worker: its name.
    :ivar result: what the function returned, None if it did not.
    :ivar error: the exception's class and text, None if there was none.
    :ivar status: the exit status of a process that ended before it was through, None if it was.
    :ivar output: what the process has printed.
    :ivar log: the events of its log, see :mod:`.replay`.
    """

    worker: str
    result: Any = None
    error: str | None = None
    status: int | None = None
    output: str = field(default="", repr=False)
    log: list[dict[str, Any]] = field(default_factory=list, repr=False)

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


class Runner:
    """Runs functions on groups of workers; the fixture ``rpc_faults``.

    :param folder: for what a run writes.
    :param template: how its processes start; with torch imported by default.
    """

    def __init__(self, folder: Path, template: Template | None = None) -> None:
        self._folder = folder
        self._template = template
        self._runs = 0

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
        self._runs += 1
        here = self._folder / f"run{self._runs}"
        here.mkdir(parents=True)
        self.log = here / "log"
        env = {"RPC_BACKENDS_FAULTS_LOG": str(self.log)}
        if replay is not None:
            env["RPC_BACKENDS_FAULTS_REPLAY"] = str(replay)
        given = _checked(rules, seed)
        meeting = (f"file://{here}/store", backend, rpc_timeout)
        with Workers(workers, env=env, seconds=seconds, template=self._template) as group:
            group.run(_start, Reference.to(function), given, seed or 0, meeting)
            steps = [worker.start(function, *args) for worker in group]
            ends: list[Any] = []
            for step in steps:
                try:
                    ends.append(step.outcome())
                except WorkerError:  # its process has ended
                    ends.append(None)
                    if group.seconds_left() <= 0:
                        raise
            # Together, if all are there; one that failed may have left calls unanswered.
            together = all(isinstance(end, Done) for end in ends)
            alive = [worker.index for worker in group if worker.status is None]
            with contextlib.suppress(WorkerError):
                group.run(_stop, together, on=alive)
            return [self._outcome(worker, end) for worker, end in zip(group, ends, strict=True)]

    def _outcome(self, worker: Any, end: Done | Failure | None) -> Outcome:
        log = self.log / replay.file_name(worker.name, 1)
        return Outcome(
            worker.name,
            result=end.value if isinstance(end, Done) else None,
            error=f"{end.kinds[0]}: {end.text}" if isinstance(end, Failure) else None,
            status=worker.status if end is None else None,
            output=worker.output,
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


# --- steps of the workers -------------------------------------------------------------------------


def _start(
    me: Me,
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


def _stop(me: Me, together: bool) -> None:
    from torch.distributed import rpc

    from rpc_backends_core.spi import torch_internals

    if torch_internals.has_current_agent():
        rpc.shutdown(graceful=together, timeout=_LEAVING)
