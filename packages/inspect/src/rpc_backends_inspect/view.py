"""Prints the states of workers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rpc_backends_cli import console, grid
from rpc_backends_inspect.causes import Cause
from rpc_backends_inspect.stacks import Thread
from rpc_backends_inspect.workers import Call, WorkerState

#: The most calls in flight of one worker that are shown.
_CALLS = 20


def show(states: Sequence[WorkerState], causes: Sequence[Cause], *, stacks: bool) -> None:
    """Print the workers, their calls in flight, and the causes."""
    out = console()
    for state in states:
        _show_worker(out, state, stacks=stacks)
    for cause in causes:
        out.print(Text.assemble((f"{_TITLES[cause.kind]}: ", "bold"), f"{cause.text}."))
    if not causes:
        out.print("No worker has waited long for a call.")


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


def _show_worker(out: Console, state: WorkerState, *, stacks: bool) -> None:
    title = (state.worker, "bold"), f"  process {state.pid}  "
    if state.problem:
        out.print(Text.assemble(*title, (state.problem, "red")))
        out.print()
        return
    out.print(Text.assemble(*title, f"{state.backend}  {_group_of(state)}"))
    calls = sorted(state.in_flight, key=lambda call: -call.seconds)
    if calls:
        table = grid("age", "", "worker", "function", "bytes", "thread")
        for call in calls[:_CALLS]:
            table.add_row(
                f"{call.seconds:.1f} s",
                "from" if call.incoming else "to",
                call.peer or str(call.peer_id),
                call.name,
                str(call.bytes),
                _thread_of(call, state),
            )
        out.print(Padding(table, (0, 0, 0, 2)))
        if len(calls) > _CALLS:
            out.print(f"  ... and {len(calls) - _CALLS} more; --json has all")
    else:
        out.print("  no calls in flight")
    if stacks:
        for thread in state.threads:
            out.print(f"  thread {thread.number:#x}")
            for frame in thread.frames:
                out.print(f"    {frame.file}:{frame.line} in {frame.function}", soft_wrap=True)
    out.print()


def _group_of(state: WorkerState) -> str:
    if state.start is None:
        return f"group: {', '.join(state.members.values())}"
    if state.start.error:
        return f"init_rpc failed: {state.start.error}"
    rank = (
        f"rank {state.start.rank} of {state.start.world_size}  " if state.start.world_size else ""
    )
    return f"{rank}in init_rpc for {state.start.seconds:.1f} s, at {state.group}"


def _thread_of(call: Call, state: WorkerState) -> str:
    """Return text that says at which line the thread of a call is now."""
    thread: Thread | None = state.thread(call.thread)
    if thread is None or thread.position is None:
        return ""
    return f"at {thread.position}"
