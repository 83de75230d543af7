"""Prints groups of workers: their calls in flight, and why they wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rpc_backends_cli import console, grid
from rpc_backends_inspect.causes import Cause
from rpc_backends_inspect.groups import InspectedGroup, short_id
from rpc_backends_inspect.stacks import Thread
from rpc_backends_inspect.workers import Call, WorkerState

#: The most rows of calls of one worker, and the most names in a list.
_ROWS = 20
_NAMES = 8
#: What the agents say of a peer whose process has ended.
_ENDED = ("its process has ended", "has ended without shutdown()")

_TITLES = {
    "cycle": "Deadlock",
    "threads": "No thread is left",
    "gone": "Gone",
    "gil": "GIL",
    "start": "Start",
    "shutdown": "Shutdown",
    "rref": "RRefs",
    "missing": "Not found",
    "slow": "Slow",
}


def show(groups: Iterable[tuple[InspectedGroup, Sequence[Cause]]], *, stacks: bool) -> None:
    """Print the groups, each with its workers, their calls in flight, and the causes."""
    out = console()
    for number, (group, causes) in enumerate(groups):
        if number:
            out.print()
        _show_group(out, group)
        idle = [] if stacks else [state for state in group.states if _is_idle(state)]
        for state in group.states:
            if state not in idle:
                _show_worker(out, state, stacks=stacks)
        if idle:
            noun = "worker has" if len(idle) == 1 else "workers have"
            names = _listed(f"{state.worker} (process {state.pid})" for state in idle)
            out.print(f"{len(idle)} {noun} no calls in flight: {names}")
        out.print()
        for cause in causes:
            out.print(Text.assemble((f"{_TITLES[cause.kind]}: ", "bold"), f"{cause.text}."))
        if not causes:
            out.print("None of these workers has waited long for a call.")


def _show_group(out: Console, group: InspectedGroup) -> None:
    count = len(group.states)
    facts = [group.backend, f"at {group.address}" if group.address else ""]
    here = {state.worker for state in group.states}
    absent = [name for name in group.members if name not in here]
    workers = f"{count} worker{'s' * (count != 1)}"
    ended = [name for name in absent if _has_ended(name, group)]
    absent = [name for name in absent if name not in ended]
    if ended:
        workers += f", {len(ended)} whose process has ended: {_listed(ended)}"
    if absent:
        workers += f", and {len(absent)} not found on this host: {_listed(absent)}"
    if group.key.startswith("@"):
        title = "Workers in init_rpc"
    else:
        title = f"Group {short_id(group)}" if group.key else "Workers of an unknown group"
    out.print(Text.assemble((title, "bold"), "  ", "  ".join(filter(None, [*facts, workers]))))
    guards = _guards(group)
    if guards:
        out.print(f"guard: {guards}")


def _guards(group: InspectedGroup) -> str:
    """Return which policies guard the workers of a group; empty if none has one."""
    by_policy: dict[str, list[str]] = {}
    for state in group.states:
        if not state.problem:
            by_policy.setdefault(state.guard or "none", []).append(state.worker)
    if list(by_policy) in ([], ["none"]):
        return ""
    if len(by_policy) == 1:
        return next(iter(by_policy))
    return "; ".join(f"{policy} ({_listed(workers)})" for policy, workers in by_policy.items())


def _has_ended(worker: str, group: InspectedGroup) -> bool:
    """Return whether the error of a call to this worker says that its process has ended."""
    return any(
        call.peer == worker and not call.incoming and any(text in call.error for text in _ENDED)
        for state in group.states
        for call in state.recent
    )


def _is_idle(state: WorkerState) -> bool:
    return not (state.problem or state.in_flight or state.start)


def _show_worker(out: Console, state: WorkerState, *, stacks: bool) -> None:
    title = (state.worker or "a worker", "bold"), f"  process {state.pid}"
    if state.problem:
        out.print(Text.assemble(*title, "  ", (state.problem, "red")))
        return
    out.print(Text.assemble(*title, _start_of(state)))
    rows = list(_rows(state))
    if rows:
        table = grid(
            "age", "", "worker", "function", "bytes", "thread", folded=("worker", "function")
        )
        for row in rows[:_ROWS]:
            table.add_row(*row)
        out.print(Padding(table, (0, 0, 0, 2)))
        if len(rows) > _ROWS:
            out.print(f"  ... and {len(rows) - _ROWS} more kinds of calls; --json has all")
    if stacks:
        for thread in state.threads:
            out.print(f"  thread {thread.number:#x}")
            for frame in thread.frames:
                out.print(f"    {frame.file}:{frame.line} in {frame.function}", soft_wrap=True)


def _rows(state: WorkerState) -> Iterator[tuple[str, ...]]:
    """Yield the calls in flight, the oldest first; equal calls at the same line make one row."""
    alike: dict[tuple[bool, str, str, str], list[Call]] = {}
    for call in sorted(state.in_flight, key=lambda call: -call.seconds):
        peer = call.peer or str(call.peer_id)
        key = call.incoming, peer, call.name, _thread_of(call, state)
        alike.setdefault(key, []).append(call)
    for (incoming, peer, name, thread), calls in alike.items():
        times = f"{len(calls)} x " if len(calls) > 1 else ""
        yield (
            f"{calls[0].seconds:.1f} s",
            "from" if incoming else "to",
            peer,
            f"{times}{name}",
            str(sum(call.bytes for call in calls)),
            thread,
        )


def _start_of(state: WorkerState) -> str:
    """Return text about a worker that is in ``init_rpc``, or whose ``init_rpc`` failed."""
    start = state.start
    if start is None:
        return ""
    if start.error:
        return f"  init_rpc failed: {start.error}"
    rank = f"rank {start.rank} of {start.world_size}  " if start.world_size else ""
    return f"  {rank}in init_rpc for {start.seconds:.1f} s"


def _thread_of(call: Call, state: WorkerState) -> str:
    """Return text that says at which line the thread of a call is now."""
    thread: Thread | None = state.thread(call.thread)
    if thread is None or thread.position is None:
        return ""
    return f"at {thread.position}"


def _listed(texts: Iterable[str]) -> str:
    shown = list(texts)
    if len(shown) <= _NAMES:
        return ", ".join(shown)
    return f"{', '.join(shown[: _NAMES - 1])} and {len(shown) - _NAMES + 1} more"
