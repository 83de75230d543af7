"""``rpc-backends inspect --watch``: rates and times of calls, again and again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from rpc_backends_cli import console, grid
from rpc_backends_inspect import processes
from rpc_backends_inspect.groups import grouped, short_id
from rpc_backends_inspect.workers import Call, WorkerState

#: The most rows of a frame, and the most workers with problems.
_ROWS = 30
_PROBLEMS = 8
#: The least characters that are shown of a long name of a worker; with them, 80 columns hold all numbers.
_WIDEST = 8
#: Messages with which torch counts references and cleans up: no calls of the program.
_OF_TORCH = {
    "RREF_USER_DELETE",
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
}


@dataclass(frozen=True)
class Row:
    """The calls of a worker to one peer and function that ended in an interval.

    :ivar group_id: what tells the worker's group from others.
    :ivar calls: calls per second.
    :ivar bytes: bytes of requests and answers per second.
    :ivar p50: seconds within which half of the calls ended; ``p90`` and ``p99`` likewise.
    :ivar failed: calls that ended with an error.
    :ivar in_flight: calls that have not ended.
    """

    group_id: str
    worker: str
    peer: str
    function: str
    calls: float
    bytes: float
    p50: float
    p90: float
    p99: float
    failed: int
    in_flight: int


class Meter:
    """Makes rows from states that are read one after the other."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], WorkerState] = {}

    def with_ended(self, states: Iterable[WorkerState]) -> list[WorkerState]:
        """Return the states, and a state for each worker that was read before and has left or died."""
        states = list(states)
        present = {(state.worker, state.pid) for state in states}
        for (worker, pid), before in self._before.items():
            if (worker, pid) not in present:
                text = processes.fate(pid) or "has left its group"
                states.append(WorkerState(worker, pid, text, group_key=before.group_key))
        return states

    def rows(self, states: Iterable[WorkerState]) -> list[Row]:
        """Return the outgoing calls since the last states, the busiest first; none the first time."""
        rows: list[Row] = []
        for state in states:
            before = self._before.get((state.worker, state.pid))
            self._before[state.worker, state.pid] = state
            if before and not before.problem and not state.problem:
                rows += _rows(before, state)
        return sorted(rows, key=lambda row: (-row.calls, -row.in_flight, row.worker, row.function))


def _rows(before: WorkerState, now: WorkerState) -> Iterator[Row]:
    seconds = max((now.time_us - before.time_us) / 1e6, 1e-3)
    ended = [call for call in now.recent if call.end_us > before.time_us]
    # Of a fast worker, the recorder keeps only some calls, but it counts all of them.
    share = max((now.calls - before.calls) / len(ended), 1.0) if ended else 1.0
    groups: dict[tuple[str, str], tuple[list[Call], list[Call]]] = {}
    for calls, index in ((ended, 0), (now.in_flight, 1)):
        for call in calls:
            if not call.incoming:
                groups.setdefault((call.peer, call.name), ([], []))[index].append(call)
    for (peer, function), (done, waiting) in groups.items():
        times = sorted(call.seconds for call in done)
        yield Row(
            group_id=now.group_key,
            worker=now.worker,
            peer=peer,
            function=function,
            calls=len(done) * share / seconds,
            bytes=sum(call.bytes + call.answer_bytes for call in done) * share / seconds,
            p50=_percentile(times, 0.5),
            p90=_percentile(times, 0.9),
            p99=_percentile(times, 0.99),
            failed=sum(call.state != "answered" for call in done),
            in_flight=len(waiting),
        )


def _percentile(times: list[float], share: float) -> float:
    return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0


def frame(states: Iterable[WorkerState], rows: list[Row], seconds: float) -> RenderableType:
    """Return one screen: the busiest rows, each at the same place as before."""
    states = list(states)
    rows = [row for row in rows if row.function not in _OF_TORCH]
    problems = [state for state in states if state.problem]
    lines = [
        Text.assemble(
            (state.worker or "a worker", "bold"),
            f" (process {state.pid}) {state.problem}",
            style="red",
        )
        for state in problems[-_PROBLEMS:]
    ]
    if len(problems) > _PROBLEMS:
        lines.insert(
            0, Text(f"{len(problems) - _PROBLEMS} more workers have problems or have left")
        )
    groups = {group.key: short_id(group) for group in grouped(states)}
    several = len(groups) > 1
    table = grid(
        *["group"] * several,
        *("worker", "to", "function", "calls/s", "bytes/s", "p50", "p99", "failed", "open"),
    )
    for row in sorted(rows[:_ROWS], key=_place):
        table.add_row(
            *[groups.get(row.group_id, "")] * several,
            row.worker,
            row.peer,
            _without_module(row.function),
            f"{row.calls:,.0f}",
            _bytes(row.bytes),
            _time(row.p50),
            _time(row.p99),
            str(row.failed) if row.failed else "",
            str(row.in_flight) if row.in_flight else "",
        )
    for column in table.columns:
        # A narrow terminal cuts names, and no number. Names have no spaces, so they stay on one line.
        is_name = column.header in {"worker", "to", "function"}
        column.no_wrap = not is_name
        column.overflow = "ellipsis" if is_name else "ignore"
        if column.header != "function":
            widest = max(len(str(cell)) for cell in (column.header, *column.cells))
            column.min_width = min(widest, _WIDEST)
    total = sum(row.calls for row in rows)
    running = sum(not state.problem for state in states)
    where = f" in {len(groups)} groups" if several else ""
    head = Text(f"{running} workers{where}, {total:,.0f} calls/s; every {seconds:g} s; Ctrl-C ends")
    more = (
        [Text(f"... and {len(rows) - _ROWS} more rows; --json has all")]
        if len(rows) > _ROWS
        else []
    )
    return Group(head, *lines, table, *more)


def _place(row: Row) -> tuple[str, ...]:
    return row.group_id, row.worker, row.peer, row.function


def watch(read: Callable[[], list[WorkerState]], seconds: float) -> None:
    """Show frames until Ctrl-C, which ends a pause or a read, but lets a frame be drawn."""
    stopped = interruptible = False

    def stop(_number: int, _frame: object) -> None:
        # It takes no lock, as an Event does: the code that the signal interrupts may hold that lock.
        nonlocal stopped, interruptible
        stopped = True  # Python ignores the exception if it comes in a destructor
        if interruptible:  # an interrupted frame would leave the cursor hidden
            interruptible = False
            raise KeyboardInterrupt

    def next_states(pause: float) -> list[WorkerState]:
        nonlocal interruptible
        interruptible = True
        if stopped:
            raise KeyboardInterrupt
        time.sleep(pause)
        states = read()
        interruptible = False
        return states

    before = signal.signal(signal.SIGINT, stop)
    try:
        meter = Meter()
        states = next_states(0)
        with Live(
            frame(states, meter.rows(states), seconds), console=console(), auto_refresh=False
        ) as live:
            while True:
                states = meter.with_ended(next_states(seconds))
                live.update(frame(states, meter.rows(states), seconds), refresh=True)
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGINT, before)


def lines(read: Callable[[], list[WorkerState]], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what each interval measured."""
    meter = Meter()
    meter.rows(read())
    while True:
        time.sleep(seconds)
        states = meter.with_ended(read())
        yield {
            "time_us": max((state.time_us for state in states), default=0),
            "seconds": seconds,
            "workers": [
                {
                    "worker": state.worker,
                    "pid": state.pid,
                    "group_id": state.group_key,
                    "problem": state.problem,
                }
                for state in states
            ],
            "rows": [asdict(row) for row in meter.rows(states)],
        }


def _without_module(function: str) -> str:
    """Return a function's name without its module; a method has its class."""
    *_, owner, name = ("", *function.split("."))
    return f"{owner}.{name}" if owner[:1].isupper() else name


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{_short(seconds * factor)} {unit}"
    return f"{seconds * 1e6:.0f} us"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{_short(count)} {unit}"
        count /= 1000
    return f"{_short(count)} GB"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
