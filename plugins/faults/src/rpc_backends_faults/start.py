"""Puts fault injection in front of an agent, with the configured rules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rpc_backends_agents import intercept
from rpc_backends_core.spi import current_session, nearest
from rpc_backends_faults import _native, live, replay
from rpc_backends_faults.engine import Engine, logger
from rpc_backends_faults.rules import Rule, RuleError, RuleSet, matches
from rpc_backends_faults.settings import LOG, SEED, Wanted
from rpc_backends_faults.watching import Watcher

FORMAT = 1
#: Position among interceptors: near the network, so that the others see the effects of faults.
ORDER = 900


def wrap(agent: Any, backend: str | None, want: Wanted) -> Any:
    """Return ``agent`` with fault injection in front of it.

    :raises RuleError: a rule names workers that do not exist, or a log cannot be read or written.
    """
    names = _static_names(agent)
    _check_workers((*want.of_file.rules, *want.given), names)
    worker = agent.get_worker_info().name
    recording = replay.find(want.replay, worker) if want.replay is not None else None
    want = _without_used_crashes(want, worker)
    pipeline = _native.FaultPipeline(worker)
    if recording is None:
        engine = Engine(pipeline, worker, want)
    else:
        _refuse_beside(want, recording)
        engine = Engine(pipeline, worker, Wanted(), recording)
    try:
        if want.log is not None:
            path = _open_log(pipeline, want.log, worker)
            logger.info("the event log of RPC worker %r is %s", worker, path)
            engine.log(
                "start",
                format=FORMAT,
                worker=worker,
                backend=backend,
                workers=names or [],
                pid=os.getpid(),
                process=_process(os.getpid()),
                torch=torch.__version__,
                seed=engine.seed,
                rules=recording.rules if recording is not None else engine.native_rules(),
                replay=str(want.replay) if want.replay is not None else None,
                time=time.time(),
            )
            _check_written(pipeline, path)
        if want.file is not None and recording is None:
            watcher = Watcher(want.file, engine, lambda rules: _check_file(rules, names), want.seen)
            engine.at_close(watcher.close)
        front = intercept(agent, pipeline, name="faults", order=ORDER, at_shutdown=engine.close)
    except BaseException:
        engine.close()
        raise
    live.set_current(engine)
    return front


def _without_used_crashes(want: Wanted, worker: str) -> Wanted:
    """Leave out `crash` rules whose budget earlier processes of this worker have used, as the log says.

    A worker that is started again would otherwise crash at the same message each time.
    """
    limited = [rule for rule in want.of_file.rules if rule.what == "crash" and rule.budget]
    if want.log is None or want.replay is not None or not limited:
        return want
    crashes: Counter[str] = Counter()
    for path in replay.logs(want.log, worker):
        with contextlib.suppress(RuleError):  # it was killed before it had written a line
            for _, event in replay.events(path):
                faults = event.get("faults", [])
                crashes.update(fault["rule"] for fault in faults if fault["what"] == "crash")
    used = {rule for rule in limited if crashes[rule.name] >= rule.budget}
    rules = tuple(rule for rule in want.of_file.rules if rule not in used)
    return dataclasses.replace(want, of_file=RuleSet(rules, want.of_file.seed))


def _refuse_beside(want: Wanted, recording: replay.Recording) -> None:
    """Reject rules and a seed that differ from those of the recorded run.

    :raises RuleError: a rule or the seed differs.
    """
    problems = [
        f"{f'{rule.source}: ' if rule.source else ''}the rule {rule.name!r} is not in {want.replay}, "
        "which is replayed, or differs there. A replay takes its rules from the log: remove the rule, "
        "or record a run with it."
        for rule in (*want.of_file.rules, *want.given)
        if not recording.has(rule)
    ]
    seed = want.seeds.chosen(want.of_file.seed)
    if seed is not None and seed != recording.seed:
        problems.append(
            f"the seed {seed} differs from the seed {recording.seed} of {want.replay}, which is "
            "replayed. A replay takes its seed from the log: remove the seed, or set "
            f"{SEED}={recording.seed}."
        )
    if problems:
        raise RuleError(problems)


@functools.cache
def _process(pid: int) -> str:
    """Return a unique id of this process; process ids repeat, for example between containers."""
    return f"{pid}-{uuid.uuid4().hex}"


def _static_names(agent: Any) -> list[str] | None:
    """Return the names of all workers of a static group; None if the group may still grow."""
    current = current_session()
    if current is None or current.world_size is None:
        return None
    names = [worker.name for worker in agent.get_worker_infos()]
    return names if len(names) == current.world_size else None


def _check_file(rules: RuleSet, names: list[str] | None) -> None:
    _check_workers(rules.rules, names)


def _check_workers(rules: Iterable[Rule], names: list[str] | None) -> None:
    """Reject rules whose patterns match no worker of the group.

    :raises RuleError: with every such pattern.
    """
    if names is None:
        return
    problems = []
    for rule in rules:
        for patterns in (rule.senders, rule.receivers):
            for pattern in patterns:
                if any(matches(pattern, name) for name in names):
                    continue
                close = nearest(pattern, names)
                hint = f" Did you mean {close!r}?" if close else ""
                place = f"{rule.source}: " if rule.source else ""
                problems.append(
                    f"{place}the rule {rule.name!r} names {pattern!r}, which matches no worker.{hint} "
                    f"The group has: {', '.join(names)}."
                )
    if problems:
        raise RuleError(problems)


def _open_log(pipeline: _native.FaultPipeline, folder: Path, worker: str) -> Path:
    number = 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = replay.processes(folder, worker) - {_process(os.getpid())}
        if earlier:
            logger.warning(
                "%s already has a log of RPC worker %r from another process, so this folder cannot be "
                "replayed. Set %s to a new folder for each run.",
                folder,
                worker,
                LOG,
            )
        # No agent appends to an existing log: a worker that rejoins starts a new one.
        while (path := folder / replay.file_name(worker, number)).exists():
            number += 1
        pipeline.open_log(str(path))
    except (OSError, RuntimeError) as error:
        raise RuleError([f"the event log cannot be written to {folder}: {error}"]) from error
    return path


def _check_written(pipeline: _native.FaultPipeline, path: Path) -> None:
    lost, why = pipeline.log_failure()
    if lost:
        raise RuleError([f"the event log {path} cannot be written: {why}."])
