"""What calls functions in other processes without torch's RPC: measured beside backends, if installed."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from rpc_backends_core.bench import steps
from rpc_backends_core.testing.processes import Me

#: By name on the command line: the label in results, the module that has to be there, ours that uses it,
#: and the distribution.
KNOWN = {
    "ray": ("Ray actor", "ray", "rpc_backends_core.bench.ray_actor", "ray"),
    "monarch": (
        "Monarch endpoint",
        "monarch",
        "rpc_backends_core.bench.monarch_endpoint",
        "torchmonarch",
    ),
}
#: The rows that they have too; the others are of groups, or of torch's own functions.
ROWS = ("latency.noop", "latency.tensor", "throughput.inflight", "size.echo", "size.oneway")


class Callee(Protocol):
    """A process that is called; the one that calls it has made it."""

    def call(self, function: str, *args: Any) -> Any:
        """Call ``noop``, ``echo`` or ``sink`` there, and return the answer."""

    def start(self) -> Any:
        """Call ``noop``, and return what :meth:`wait` takes."""

    def wait(self, started: Any) -> None:
        """Wait until the answer is there."""

    def close(self) -> None:
        """End the process, and all that was started for it."""


def installed() -> list[str]:
    """Return those of :data:`KNOWN` that are installed."""
    return [name for name, (_, module, *_) in KNOWN.items() if find_spec(module) is not None]


# --- steps of the process that calls --------------------------------------------------------------


def begin(me: Me, name: str, cores: list[int]) -> None:
    """Start a callee.

    :param cores: on which it is to stay; any if empty.
    """
    me.memory["callee"] = import_module(KNOWN[name][2]).open_callee(cores)


def end(me: Me) -> None:
    """End it."""
    me.memory.pop("callee").close()


def latency(me: Me, kind: str, calls: int, seconds: float) -> array[float]:
    """Return the times of calls that are made one after the other: ``noop`` or ``tensor``."""
    callee: Callee = me.memory["callee"]
    if kind == "noop":
        return _timed(lambda: callee.call("noop"), calls, seconds)
    import torch

    few = torch.ones(16)
    return _timed(lambda: callee.call("echo", few), calls, seconds)


def throughput(me: Me, in_flight: int, seconds: float) -> float:
    """Return how many no-ops a second end, with so many in flight."""
    callee: Callee = me.memory["callee"]
    begin = time.perf_counter()
    end = begin + seconds
    waiting = deque(callee.start() for _ in range(in_flight))
    made = in_flight
    while time.perf_counter() < end or made < 4 * in_flight:
        callee.wait(waiting.popleft())
        waiting.append(callee.start())
        made += 1
    for one in waiting:
        callee.wait(one)
    return made / (time.perf_counter() - begin)


def size(me: Me, kind: str, length: int, calls: int, seconds: float) -> array[float]:
    """Return the times of sending ``length`` bytes: ``oneway``, or ``echo`` and back."""
    import torch

    callee: Callee = me.memory["callee"]
    if me.memory.get("length") != length:
        me.memory.update(length=length, tensor=torch.ones(length, dtype=torch.uint8))
    tensor = me.memory["tensor"]
    function = "echo" if kind == "echo" else "sink"
    return steps.timed(lambda: callee.call(function, tensor), calls, seconds, 1, least=2)


def _timed(call: Callable[[], Any], calls: int, seconds: float) -> array[float]:
    return steps.timed(call, calls, seconds, steps.WARM_UP, least=calls // 4)
