"""Compare the counts of a real group with the simulation."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from carrying import Simulated, dynamic_group, static_group
from counting import SHUTDOWN, Count, Phase

#: By what share the bytes from the store may differ: names, hosts and ports vary in length.
_BYTES_TOLERANCE = 0.25


def differences(count: Count) -> list[str]:
    """Return a text for each difference from the simulation; empty if there is none.

    In each phase these are compared: store requests by kind, of the whole group (the last
    worker to arrive makes more than the others, and any worker may be the last); calls and
    connections of each worker; and, with a tolerance, bytes from the store.
    """
    simulate = dynamic_group if count.dynamic else static_group
    simulated = {phase.name: phase for phase in simulate(count.subject, count.size)}
    found = []
    for phase in count.phases:
        for text in _differences(count, phase, simulated[phase.name]):
            found.append(f"{count.subject}, {count.size} workers, {phase.name}: {text}")
    return found


def _differences(count: Count, real: Phase, simulated: Simulated) -> Iterator[str]:
    requests: collections.Counter[str] = collections.Counter()
    for each in real.requests:
        requests.update(each)
    if (kinds := dict(sorted(requests.items()))) != simulated.requests:
        yield f"store requests: counted {kinds}, simulated {simulated.requests}"
    if real.calls != simulated.calls:
        yield f"calls by worker: counted {real.calls}, simulated {simulated.calls}"
    # After a shutdown some engines have closed their sockets, and others close them later.
    if real.held and real.name != SHUTDOWN:
        connections = [
            int(now["connections"] - before["connections"])
            for now, before in zip(real.held, count.before, strict=True)
        ]
        if connections != simulated.connections:
            yield f"connections by worker: counted {connections}, simulated {simulated.connections}"
    received = sum(real.store_received)
    if abs(received - simulated.received) > _BYTES_TOLERANCE * received:
        yield f"bytes from the store: counted {received}, simulated {simulated.received}"
