"""The world of simulated workers: calls, and a store that serves one request after the other.

Times are in seconds of `simpy`'s clock. A value in the store is a size in bytes, with only the content
that the protocols read.
"""

from __future__ import annotations

import collections
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

#: The steps of a worker: a generator that yields events and may return a value.
Steps = Generator[simpy.Event, Any, Any]

#: Approximate bytes of a request without the values in it: its kind, the key, lengths.
_AROUND = 40
#: Bytes of the length field before a value in an answer.
_LENGTH = 8


@dataclass(frozen=True)
class Costs:
    """Costs in seconds; `costs.py` measures them, and the defaults are from one machine.

    :ivar request: time of the store's thread for a request.
    :ivar byte: time of the store's thread for each byte in or out.
    :ivar connect: time of the store's thread for a new client.
    :ivar latency: of a message in one direction.
    :ivar call: time of the thread that makes or serves a call.
    """

    request: float = 14e-6
    byte: float = 0.34e-9
    connect: float = 280e-6
    latency: float = 50e-6
    call: float = 50e-6


class Value(NamedTuple):
    """The value of a key.

    :ivar what: the content that the protocol reads.
    :ivar size: the size in bytes.
    """

    what: Any
    size: int


NOTHING = Value(None, 0)


@dataclass
class Tally:
    """The counts of one worker.

    :ivar requests: requests to the store, by kind.
    :ivar received: bytes received from the store.
    :ivar calls: RPC calls sent.
    :ivar call_bytes: payload bytes of the calls, without parts that do not grow with the group.
    """

    requests: collections.Counter[str] = field(default_factory=collections.Counter)
    received: int = 0
    calls: int = 0
    call_bytes: int = 0


class World:
    """A group's store, the tallies of its workers, and the connections between them.

    :ivar links: pairs (caller, callee) between which a call was made.
    :ivar busy: how long the store has worked, in seconds.
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
        """Run the steps of all workers at once; return the seconds until the last one has ended."""
        begin = self.env.now
        processes = [self.env.process(each) for each in steps]
        self.env.run(self.env.all_of(processes))
        return float(self.env.now - begin)

    def serve(self, size: int, seconds: float | None = None) -> simpy.Event:
        """Let the store serve a request, after all earlier ones; return the event of its end.

        :param size: bytes in and out.
        :param seconds: the time besides that for the bytes; by default the cost of a request.
        """
        costs = self.costs
        took = (costs.request if seconds is None else seconds) + costs.byte * size
        self.busy += took
        self._free_at = max(self._free_at, self.env.now) + took
        return self.env.timeout(self._free_at - self.env.now)

    def occupy(self, worker: int, times: int = 1) -> simpy.Event:
        """Let a worker make or serve calls, after all earlier ones; return the event of their end."""
        free_at = max(self._serving_free_at[worker], self.env.now) + times * self.costs.call
        self._serving_free_at[worker] = free_at
        return self.env.timeout(free_at - self.env.now)

    def put(self, key: str, value: Value) -> None:
        """Write a value and wake the workers that wait for it."""
        self.values[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.succeed()

    def event(self, name: str) -> simpy.Event:
        """Return the event that occurs once enough workers have arrived at ``name``."""
        return self._events.setdefault(name, self.env.event())

    def arrive(self, name: str, of: int) -> None:
        """Count an arrival at ``name``; the event occurs when ``of`` have arrived."""
        self._arrived[name] += 1
        if self._arrived[name] == of:
            self.event(name).succeed()

    def there(self, key: str) -> simpy.Event:
        """Return the event that occurs when the key has a value."""
        event = self.env.event()
        if key in self.values:
            return event.succeed()
        self._waiting.setdefault(key, []).append(event)
        return event


class Client:
    """One worker's connection to the store, which makes the same requests as torch's client."""

    def __init__(self, world: World, worker: int) -> None:
        self.world = world
        self.worker = worker

    def connect(self) -> Steps:
        """Connect to the store."""
        yield from self._arrive("validate", 0, self.world.costs.connect)
        yield from self._arrive("ping", 0)
        yield from self._answer(4)

    def add(self, key: str, amount: int) -> Steps:
        """Add to a counter; return its new value."""
        yield from self._arrive("add", 0)
        total: int = self.world.values.get(key, Value(0, 8)).what + amount
        self.world.put(key, Value(total, 8))
        yield from self._answer(8)
        return total

    def set(self, key: str, value: Value) -> Steps:
        """Write a value; the store does not answer."""
        yield from self._arrive("set", value.size)
        self.world.put(key, value)

    def compare_set(self, key: str, expected: Value, value: Value) -> Steps:
        """Write a value if the present one is ``expected``; return the value after that."""
        yield from self._arrive("compare_set", expected.size + value.size)
        found = self.world.values.get(key, NOTHING)
        if found.what == expected.what:
            self.world.put(key, value)
            found = value
        yield from self._answer(_LENGTH + found.size)
        return found

    def check(self, *keys: str) -> Steps:
        """Return whether all keys exist."""
        yield from self._arrive("check", len(keys) * _AROUND)
        exist = all(key in self.world.values for key in keys)
        yield from self._answer(1)
        return exist

    def wait(self, *keys: str) -> Steps:
        """Wait until all keys exist."""
        yield from self._arrive("wait", len(keys) * _AROUND)
        for key in keys:
            yield self.world.there(key)
        yield from self._answer(1)

    def get(self, key: str) -> Steps:
        """Wait for a value and return it; torch's client makes two requests."""
        yield from self.wait(key)
        yield from self._arrive("get", 0)
        value = self.world.values[key]
        yield from self._answer(_LENGTH + value.size)
        return value

    def multi_get(self, *keys: str) -> Steps:
        """Wait for values and return them; torch's client makes two requests."""
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
    """Call a worker and wait for the answer."""
    yield from call_all(world, caller, [callee], size)


def call_all(world: World, caller: int, callees: list[int], size: int = 0) -> Steps:
    """Call workers, all at the same time, and wait for all answers.

    :param size: payload bytes of each call, without parts that do not grow with the group.
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
