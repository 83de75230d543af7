"""The calls of workers in the Chrome trace format, which Perfetto and ``chrome://tracing`` open.

Workers are processes and their threads are rows. Calls that overlap on one thread (``rpc_async``) get
more rows. An arrow goes from a call to its execution, and another one from there to the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rpc_backends_inspect.clocks import Pair, offsets_us, pairs
from rpc_backends_inspect.workers import Call, WorkerState


def trace(states: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the document: times in microseconds since 1970 by the clock of the first worker's host."""
    matched = list(pairs(states))
    offsets = offsets_us(states, matched)
    events: list[dict[str, Any]] = []
    rows: dict[tuple[int, bool, int], int] = {}
    for index, (state, offset) in enumerate(zip(states, offsets, strict=True), 1):
        label = {"name": f"{state.worker} ({state.host}, process {state.pid})"}
        events.append({"ph": "M", "name": "process_name", "pid": index, "tid": 0, "args": label})
        names: dict[int, str] = {}
        for call, row, name in _placed(state):
            rows[index, call.incoming, call.number] = row
            names[row] = name
            events.append(_slice(call, state, index, row, offset))
        for row, name in names.items():
            args = {"name": name}
            events.append(
                {"ph": "M", "name": "thread_name", "pid": index, "tid": row, "args": args}
            )
    for number, pair in enumerate(matched, 1):
        events += _arrows(pair, number, rows, offsets)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _placed(state: WorkerState) -> list[tuple[Call, int, str]]:
    """Give each call a row. Calls on one row do not overlap, unless one encloses the other."""
    threads: dict[tuple[int, bool], int] = {}
    open_until: dict[int, list[int]] = {}  # row -> ends of the calls that are open there
    placed = []
    calls = sorted((*state.recent, *state.in_flight), key=lambda call: (call.begin_us, call.number))
    for call in calls:
        thread = threads.setdefault((call.thread, call.incoming), len(threads) + 1)
        end = call.end_us or state.time_us
        for lane in range(len(calls)):
            row = thread * 1000 + lane
            stack = open_until.setdefault(row, [])
            while stack and stack[-1] <= call.begin_us:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                break
        name = f"thread {thread}, {'served' if call.incoming else 'made'}"
        placed.append((call, row, name))
    return placed


def _slice(call: Call, state: WorkerState, pid: int, row: int, offset: int) -> dict[str, Any]:
    way = "from" if call.incoming else "to"
    return {
        "ph": "X",
        "name": f"{call.name.rpartition('.')[2]} {way} {call.peer or call.peer_id}",
        "cat": "rpc",
        "pid": pid,
        "tid": row,
        "ts": call.begin_us - offset,
        "dur": max((call.end_us or state.time_us) - call.begin_us, 1),
        "args": {
            "function": call.name,
            "type": call.type,
            "state": call.state,
            "bytes": call.bytes,
            "answer bytes": call.answer_bytes,
        }
        | ({"error": call.error} if call.error else {}),
    }


def _arrows(
    pair: Pair, number: int, rows: dict[tuple[int, bool, int], int], offsets: list[int]
) -> list[dict[str, Any]]:
    caller, callee = pair.caller + 1, pair.callee + 1
    made = {"pid": caller, "tid": rows[caller, False, pair.sent.number]}
    served = {"pid": callee, "tid": rows[callee, True, pair.served.number]}
    begin = pair.sent.begin_us - offsets[pair.caller]
    arrival = pair.served.begin_us - offsets[pair.callee]
    common = {"cat": "rpc", "name": "request", "id": number}
    events = [
        common | made | {"ph": "s", "ts": begin},
        common | served | {"ph": "f", "bp": "e", "ts": max(arrival, begin)},
    ]
    if pair.sent.end_us and pair.served.end_us:
        end = pair.sent.end_us - offsets[pair.caller]
        left = pair.served.end_us - offsets[pair.callee]
        common |= {"name": "answer", "id": -number}
        events += [
            common | served | {"ph": "s", "ts": max(left - 1, arrival)},
            common | made | {"ph": "f", "bp": "e", "ts": max(end, left - 1)},
        ]
    return events
