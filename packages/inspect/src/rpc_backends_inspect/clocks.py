"""The differences between the clocks of workers, from the times of their calls.

A call has four times: sent and answered by the caller's clock, arrived and ended by the callee's. As in
NTP, the callee's clock is ahead by ((arrived - sent) + (ended - answered)) / 2, with an error of at most
half of the time that the messages took. The call whose messages took the least time gives the difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rpc_backends_inspect.workers import Call, WorkerState


@dataclass(frozen=True)
class Pair:
    """A call on both sides; caller and callee are indices of workers."""

    caller: int
    callee: int
    sent: Call
    served: Call


def pairs(states: Sequence[WorkerState]) -> Iterator[Pair]:
    """Yield the calls that both sides have recorded."""
    served = {
        (state.group_key, state.worker, call.peer, call.call): (index, call)
        for index, state in enumerate(states)
        for call in (*state.recent, *state.in_flight)
        if call.incoming and call.call
    }
    for index, state in enumerate(states):
        for call in (*state.recent, *state.in_flight):
            key = (state.group_key, call.peer, state.worker, call.call)
            if not call.incoming and key in served:
                yield Pair(index, served[key][0], call, served[key][1])


def offsets_us(states: Sequence[WorkerState], matched: Sequence[Pair]) -> list[int]:
    """Return by how many microseconds each worker's clock is ahead of the first one's.

    Workers of one host have one clock. A worker that no chain of calls connects to the first gets 0.
    """
    edges: dict[tuple[str, str], tuple[int, int]] = {}  # the round trip, and the difference
    for pair in matched:
        hosts = states[pair.caller].host, states[pair.callee].host
        sent, served = pair.sent, pair.served
        if hosts[0] == hosts[1] or not sent.end_us or not served.end_us:
            continue
        trip = (sent.end_us - sent.begin_us) - (served.end_us - served.begin_us)
        ahead = ((served.begin_us - sent.begin_us) + (served.end_us - sent.end_us)) // 2
        if trip < 0:  # a clock was set in between
            continue
        if hosts not in edges or trip < edges[hosts][0]:
            edges[hosts] = trip, ahead
    for (caller, callee), (trip, ahead) in list(edges.items()):
        if (callee, caller) not in edges or trip < edges[callee, caller][0]:
            edges[callee, caller] = trip, -ahead
    ahead_of_first = {states[0].host: 0} if states else {}
    waiting = deque(ahead_of_first)
    while waiting:
        host = waiting.popleft()
        for (caller, callee), (_, ahead) in edges.items():
            if caller == host and callee not in ahead_of_first:
                ahead_of_first[callee] = ahead_of_first[host] + ahead
                waiting.append(callee)
    return [ahead_of_first.get(state.host, 0) for state in states]
