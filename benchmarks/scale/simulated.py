"""What the simulated workers stand on: a store that serves one request after the other, and calls.

Time goes by `simpy`'s clock, in seconds. Values are sizes, in bytes, with what the protocols look at.
"""

from __future__ import annotations

import collections
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

#: What a step of a worker is: it yields events, and returns something.
Steps = Generator[simpy.Event, Any, Any]

#: Bytes of a request beside the values in it, about: its kind, the key, lengths.
_AROUND = 40
#: Bytes of the length before a value in an answer.
_LENGTH = 8


@dataclass(frozen=True)
class Costs:
    """What things take, in seconds; measured by `costs.py`, these are of one machine.

    :ivar request: of the store's thread, for a request.
    :ivar byte: of the store's thread, for each byte in or out.
    :ivar connect: of the store's thread, for a new client.
    :ivar latency: one way between a worker and the store.
    :ivar call: of the thread that serves a call, or makes one.
    """

    request: float = 14e-6
    byte: float = 0.34e-9
    connect: float = 280e-6
    latency: float = 50e-6
    call: float = 50e-6


class Value(NamedTuple):
    """What stands under a key.

    :ivar what: whatever the protocol looks at.
    :ivar size: in bytes.
    """

    what: Any
    size: int


NOTHING = Value(None, 0)


@dataclass
class Tally:
    """What one worker has done.

    :ivar requests: to the store, by kind.
    :ivar received: bytes from the store.
    :ivar calls: RPC calls it has sent.
    :ivar call_bytes: of what these carried, as far as it grows with the group.
    """

    requests: collections.Counter[str] = field(default_factory=collections.Counter)
    received: int = 0
    calls: int = 0
    call_bytes: int = 0


class World:
    """A group's store, its workers' tallies, and who has a connection to whom.

    :ivar links: (caller, callee) of whom a call has gone from one to the other.
    :ivar busy: seconds that the store has worked.
    """

    def __init__(self, size: int, costs: Costs | None = None) -> None:
        self.env = simpy.Environment()
        self.size = size
        self.costs = costs or Costs()
        self.tallies = [Tally() for _ in range(size)]
        self.clients = [Client(self, worker) for worker in range(size)]
        self.links: set[tuple[int, int]] = set()
        self.values: dict[str, Value] = {}
        self.busy = 0.0
        self._free_at = 0.0
        self._serving_free_at = [0.0] * size
        self._waiting: dict[str, list[simpy.Event]] = {}
        self._events: dict[str, simpy.Event] = {}
        self._arrived: collections.Counter[str] = collections.Counter()

    def run(self, *steps: Steps) -> float:
        """Have workers take steps, all at once; return how long all take together."""
        begin = self.env.now
        processes = [self.env.process(each) for each in steps]
        self.env.run(self.env.all_of(processes))
        return float(self.env.now - begin)

    def serve(self, size: int, seconds: float | None = None) -> simpy.Event:
        """Have the store work for one request of ``size`` bytes, in and out, after all before it."""
        costs = self.costs
        took = (costs.request if seconds is None else seconds) + costs.byte * size
        self.busy += took
        self._free_at = max(self._free_at, self.env.now) + took
        return self.env.timeout(self._free_at - self.env.now)

    def occupy(self, worker: int, times: int = 1) -> simpy.Event:
        """Have a worker serve, or make, calls, after all before them."""
        free_at = max(self._serving_free_at[worker], self.env.now) + times * self.costs.call
        self._serving_free_at[worker] = free_at
        return self.env.timeout(free_at - self.env.now)

    def put(self, key: str, value: Value) -> None:
        """Write a value, and wake those who wait for it, one after the other."""
        self.values[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.succeed()

    def event(self, name: str) -> simpy.Event:
        """Return what happens once enough have arrived at what is called ``name``."""
        return self._events.setdefault(name, self.env.event())

    def arrive(self, name: str, of: int) -> None:
        """Count one that arrives; the event is when it is the last of so many."""
        self._arrived[name] += 1
        if self._arrived[name] == of:
            self.event(name).succeed()

    def there(self, key: str) -> simpy.Event:
        """Return what happens when a value is there."""
        event = self.env.event()
        if key in self.values:
            return event.succeed()
        self._waiting.setdefault(key, []).append(event)
        return event


class Client:
    """One worker's connection to the store, which asks as torch's client does."""

    def __init__(self, world: World, worker: int) -> None:
        self.world = world
        self.worker = worker

    def connect(self) -> Steps:
        """Connect."""
        yield from self._arrive("validate", 0, self.world.costs.connect)
        yield from self._arrive("ping", 0)
        yield from self._answer(4)

    def add(self, key: str, amount: int) -> Steps:
        """Add to a counter, and return what it is now."""
        yield from self._arrive("add", 0)
        total: int = self.world.values.get(key, Value(0, 8)).what + amount
        self.world.put(key, Value(total, 8))
        yield from self._answer(8)
        return total

    def set(self, key: str, value: Value) -> Steps:
        """Write a value; nothing comes back."""
        yield from self._arrive("set", value.size)
        self.world.put(key, value)

    def compare_set(self, key: str, expected: Value, value: Value) -> Steps:
        """Write a value if it is ``expected`` that stands there, and return what stands there then."""
        yield from self._arrive("compare_set", expected.size + value.size)
        found = self.world.values.get(key, NOTHING)
        if found.what == expected.what:
            self.world.put(key, value)
            found = value
        yield from self._answer(_LENGTH + found.size)
        return found

    def check(self, *keys: str) -> Steps:
        """Return whether keys are there."""
        yield from self._arrive("check", len(keys) * _AROUND)
        there = all(key in self.world.values for key in keys)
        yield from self._answer(1)
        return there

    def wait(self, *keys: str) -> Steps:
        """Wait until keys are there."""
        yield from self._arrive("wait", len(keys) * _AROUND)
        for key in keys:
            yield self.world.there(key)
        yield from self._answer(1)

    def get(self, key: str) -> Steps:
        """Return a value, once it is there; torch's client asks twice."""
        yield from self.wait(key)
        yield from self._arrive("get", 0)
        value = self.world.values[key]
        yield from self._answer(_LENGTH + value.size)
        return value

    def multi_get(self, *keys: str) -> Steps:
        """Return values, once they are there; torch's client asks twice."""
        yield from self.wait(*keys)
        yield from self._arrive("multi_get", len(keys) * _AROUND)
        values = [self.world.values[key] for key in keys]
        yield from self._answer(sum(_LENGTH + value.size for value in values))
        return values

    def await_and_get(self, key: str) -> Steps:
        """Wait for a value as `rpc_backends_core._group.waiting` does, and return it."""
        yield from self.wait(key)
        value = yield from self.get(key)
        return value

    def _arrive(self, kind: str, size: int, seconds: float | None = None) -> Steps:
        self.world.tallies[self.worker].requests[kind] += 1
        yield self.world.env.timeout(self.world.costs.latency)
        yield self.world.serve(size + _AROUND, seconds)

    def _answer(self, size: int) -> Steps:
        self.world.tallies[self.worker].received += size
        yield self.world.serve(size, 0.0)
        yield self.world.env.timeout(self.world.costs.latency)


def call(world: World, caller: int, callee: int, size: int = 0) -> Steps:
    """Call a worker, and wait for the answer."""
    yield from call_all(world, caller, [callee], size)


def call_all(world: World, caller: int, callees: list[int], size: int = 0) -> Steps:
    """Call workers at once, and wait for all answers.

    :param size: bytes that each call carries, as far as they grow with the group.
    """
    tally = world.tallies[caller]
    tally.calls += len(callees)
    tally.call_bytes += size * len(callees)
    world.links.update((caller, callee) for callee in callees)
    if callees:
        yield world.occupy(caller, len(callees))
        yield world.env.timeout(world.costs.latency)
        yield world.env.all_of([world.occupy(callee) for callee in callees])
        yield world.env.timeout(world.costs.latency)
