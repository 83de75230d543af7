"""Comparing what was counted of a real group with what the simulation says."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from carrying import Simulated, dynamic_group, static_group
from counting import SHUTDOWN, Count, Phase

#: How far the bytes that come from the store may be off: names, hosts and ports are longer or shorter.
_BYTES = 0.25


def differences(count: Count) -> list[str]:
    """Return in words what is not as it is simulated, phase by phase; empty if all is.

    Compared are requests to the store by kind, of the whole group (who comes last, and so does more, is
    chance); calls and connections of each worker; roughly, bytes from the store.
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
        yield f"store requests are {kinds}, simulated {simulated.requests}"
    if real.calls != simulated.calls:
        yield f"calls by worker are {real.calls}, simulated {simulated.calls}"
    # At the end of a shutdown some engines have closed their sockets, and some are about to.
    if real.held and real.name != SHUTDOWN:
        connections = [
            int(now["connections"] - before["connections"])
            for now, before in zip(real.held, count.before, strict=True)
        ]
        if connections != simulated.connections:
            yield f"connections by worker are {connections}, simulated {simulated.connections}"
    received = sum(real.store_received)
    if abs(received - simulated.received) > _BYTES * received:
        yield f"{received} bytes came from the store, simulated {simulated.received}"
