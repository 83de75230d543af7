"""Simulate groups of any size, in the same phases as `counting`."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from protocols import PROTOCOLS, Protocol
from simulated import Costs, Steps, Tally, World, call, call_all

#: The workers of a group begin at random times within this many seconds, as under a launcher.
START_SPREAD_S = 0.05


@dataclass
class Simulated:
    """The figures of one phase of a simulated group.

    :ivar requests: store requests of all workers, by kind.
    :ivar by_worker: store requests of each worker.
    :ivar received: bytes from the store to all workers.
    :ivar calls: RPC calls of each worker.
    :ivar call_bytes: payload bytes of all calls, without parts that do not grow with the group.
    :ivar connections: connections of each worker to others, at the end of the phase.
    :ivar seconds: from the start of the first worker to the end of the last.
    :ivar store_seconds: how long the store worked.
    """

    name: str
    requests: dict[str, int]
    by_worker: list[int]
    received: int
    calls: list[int]
    call_bytes: int
    connections: list[int]
    seconds: float
    store_seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the figures of the group: of each worker's figures, the largest and the sum."""
        figures = asdict(self)
        for name in ("by_worker", "calls", "connections"):
            each = figures.pop(name)
            figures[f"{name}_most"], figures[f"{name}_all"] = max(each), sum(each)
        return {**figures, "requests": sum(self.requests.values())}


class SimulatedGroup:
    """A simulated group that runs phases in sequence.

    :param seed: seed of the times at which workers begin.
    """

    def __init__(self, subject: str, size: int, costs: Costs | None = None, seed: int = 1) -> None:
        self.protocol: Protocol = PROTOCOLS[subject]
        self.world = World(size, costs)
        self.clients = self.world.clients
        self._chance = random.Random(seed)

    def phase(self, name: str, steps: dict[int, Steps]) -> Simulated:
        """Run the steps of workers and return the figures."""
        world = self.world
        world.tallies[:] = [Tally() for _ in world.tallies]
        busy = world.busy
        seconds = world.run(*(self._later(each) for each in steps.values()))
        requests = sum((each.requests for each in world.tallies), collections.Counter[str]())
        return Simulated(
            name,
            requests=dict(sorted(requests.items())),
            by_worker=[each.requests.total() for each in world.tallies],
            received=sum(each.received for each in world.tallies),
            calls=[each.calls for each in world.tallies],
            call_bytes=sum(each.call_bytes for each in world.tallies),
            connections=self._connections(),
            seconds=seconds,
            store_seconds=world.busy - busy,
        )

    def _later(self, steps: Steps) -> Steps:
        yield self.world.env.timeout(self._chance.random() * START_SPREAD_S)
        yield from steps

    def _connections(self) -> list[int]:
        ends = collections.Counter(worker for link in self.world.links for worker in link)
        return [ends[worker] * self.protocol.sockets for worker in range(self.world.size)]


#: The largest group whose phase `mesh` is simulated. In this phase all workers call all others.
_LARGEST_MESH = 64


def carry(subject: str, sizes: Sequence[int], costs: Costs) -> dict[str, Any]:
    """Simulate a backend's groups of ``sizes``; return the figures by kind of group and by size."""
    # Each worker of torch's own backend makes requests for each other worker: N^2 requests.
    reach = _REACH.get(subject, _DEFAULT_REACH)
    carried: dict[str, Any] = {"static": {}, "joins": {}, "at_once": {}}
    for size in sizes:
        if size <= reach.static:
            phases = static_group(subject, size, costs, mesh=size <= _LARGEST_MESH)
            carried["static"][size] = {phase.name: phase.summary() for phase in phases}
        if size <= reach.at_once:
            carried["at_once"][size] = joining_at_once(subject, size, costs).summary()
    joins = dynamic_group(subject, max(one for one in sizes if one <= reach.joins), costs)
    for size in (one for one in sizes if one <= reach.joins):
        carried["joins"][size] = joins[size - 1].summary()
    return carried


class _Reach(NamedTuple):
    """The largest groups of each kind whose simulation takes minutes at most."""

    static: int
    joins: int
    at_once: int


_DEFAULT_REACH = _Reach(16384, 128, 512)
_REACH = {
    "TENSORPIPE": _Reach(16384, 128, 256),
    "TENSORPIPE@torch": _Reach(128, 64, 32),
}


def static_group(
    subject: str, size: int, costs: Costs | None = None, *, mesh: bool = True
) -> list[Simulated]:
    """Simulate a static group, with the phases of `counting.count_static`."""
    group = SimulatedGroup(subject, size, costs)
    protocol, world, ranks = group.protocol, group.world, range(size)
    phases = [
        group.phase("start", {one: protocol.start(group.clients[one]) for one in ranks}),
        group.phase("ring", {one: call(world, one, (one + 1) % size) for one in ranks}),
        group.phase("star", {one: call(world, one, 0) for one in ranks if one}),
    ]
    if mesh:
        steps = {
            one: call_all(world, one, [other for other in ranks if other != one]) for one in ranks
        }
        phases.append(group.phase("mesh", steps))
    steps = {one: protocol.shutdown(group.clients[one]) for one in ranks}
    return [*phases, group.phase("shutdown", steps)]


def dynamic_group(subject: str, size: int, costs: Costs | None = None) -> list[Simulated]:
    """Simulate joins and leaves one by one, with the phases of `counting.count_dynamic`."""
    group = SimulatedGroup(subject, size, costs)
    join, leave = group.protocol.join, group.protocol.leave
    phases = []
    for one in range(size):
        phases.append(group.phase(f"join {one + 1}", {one: join(group.clients[one])}))
    for one in reversed(range(size)):
        phases.append(group.phase(f"leave {one + 1}", {one: leave(group.clients[one])}))
        group.world.links = {link for link in group.world.links if one not in link}
    return phases


def joining_at_once(subject: str, size: int, costs: Costs | None = None) -> Simulated:
    """Simulate a dynamic group that all workers join at once."""
    group = SimulatedGroup(subject, size, costs)
    return group.phase(
        "join", {one: group.protocol.join(group.clients[one]) for one in range(size)}
    )
