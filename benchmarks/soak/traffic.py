"""The calls of a soak test: each worker calls the others from several threads until time is up.

Every call checks its result. An unexpected result is recorded as text and makes the run fail. With
churn, a call may end with an RPC error, but must end within its timeout.
"""

from __future__ import annotations

import collections
import json
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backends_processes import WorkerContext

#: How many wrong results are kept in full; more are only counted.
_MAX_WRONG = 20
#: How long a single call may take in any thread before the run fails.
CALL_END_TIMEOUT_S = 120.0
#: A machine with more work than cores may take half a second to run the thread that ends a call.
_LONG_NAP_S, _SHORT_TIMEOUT_S = 1.0, 0.05
#: With churn: the timeout of each call, and how much later it may end. A busy machine with two cores may
#: take seconds to run a thread; a call that is never ended exceeds any limit.
CALL_TIMEOUT_S, TIMEOUT_SLACK_S = 5.0, 5.0
#: How long a list of peers is used before the file is read again.
_LIST_MAX_AGE_S = 0.1


# --- the called functions --------------------------------------------------------------------------


def echo(value: Any) -> Any:
    return value


def fail(text: str) -> None:
    raise ValueError(text)


def nap(seconds: float) -> None:
    time.sleep(seconds)


def add_to(rref: Any, number: float) -> Any:
    """Use an RRef from another worker; its owner may be any worker."""
    return rref.to_here() + number


@rpc.functions.async_execution
def passed_on(to: str, value: Any) -> Any:
    """Return the result of another worker, without blocking a thread on it."""
    return rpc.rpc_async(to, echo, args=(value,))


# --- the kinds of calls -----------------------------------------------------------------------------

Call = Callable[["Traffic", random.Random], None]


def call_builtin(traffic: Traffic, chance: random.Random) -> None:
    number = chance.random()
    sum_ = rpc.rpc_sync(traffic.peer(chance), torch.add, args=(torch.full((3,), number), 1))
    traffic.expect(sum_, torch.full((3,), number) + 1)


def call_with_objects(traffic: Traffic, chance: random.Random) -> None:
    value = {"text": "x" * chance.randrange(2000), "list": list(range(chance.randrange(50)))}
    answer = rpc.rpc_sync(traffic.peer(chance), echo, args=(value,))
    traffic.expect(torch.tensor(answer == value), torch.tensor(True))


def call_with_a_big_tensor(traffic: Traffic, chance: random.Random) -> None:
    tensor = torch.full((chance.randrange(1, 1 << 20),), chance.random())
    traffic.expect(rpc.rpc_sync(traffic.peer(chance), echo, args=(tensor,)), tensor)


def call_many_at_once(traffic: Traffic, chance: random.Random) -> None:
    futures = [rpc.rpc_async(traffic.peer(chance), echo, args=(n,)) for n in range(20)]
    traffic.expect(torch.tensor([future.wait() for future in futures]), torch.arange(20))


def call_through_another(traffic: Traffic, chance: random.Random) -> None:
    tensor = torch.rand(10)
    to, then = traffic.peer(chance), traffic.peer(chance)
    traffic.expect(rpc.rpc_sync(to, passed_on, args=(then, tensor)), tensor)


def use_an_rref(traffic: Traffic, chance: random.Random) -> None:
    rref = rpc.remote(traffic.peer(chance), torch.full, args=((100,), 1.0))
    rref.rpc_sync().add_(1)
    traffic.expect(rref.to_here(), torch.full((100,), 2.0))


def create_large_rrefs(traffic: Traffic, chance: random.Random) -> None:
    """If the owner has died, each call fails, and torch has noted its RRef between large tensors."""
    tensor = torch.full((chance.randrange(1, 1 << 20),), chance.random())
    owner = traffic.peer(chance)
    rrefs = [rpc.remote(owner, echo, args=(tensor,)) for _ in range(4)]
    for rref in rrefs:
        traffic.expect(rref.to_here(), tensor)


def share_an_rref(traffic: Traffic, chance: random.Random) -> None:
    rref = rpc.remote(traffic.peer(chance), torch.full, args=((100,), 1.0))
    answer = rpc.rpc_sync(traffic.peer(chance), add_to, args=(rref, 3.0))
    traffic.expect(answer, torch.full((100,), 4.0))


def call_what_raises(traffic: Traffic, chance: random.Random) -> None:
    try:
        rpc.rpc_sync(traffic.peer(chance), fail, args=("on purpose",))
    except ValueError as error:
        if "on purpose" not in str(error):
            raise
    else:
        raise AssertionError("a call of a function that raises has not raised")


def call_what_takes_too_long(traffic: Traffic, chance: random.Random) -> None:
    try:
        rpc.rpc_sync(traffic.peer(chance), nap, args=(_LONG_NAP_S,), timeout=_SHORT_TIMEOUT_S)
    except RuntimeError as error:
        if "RPC ran for more than set timeout" not in str(error):
            raise
    else:
        if not traffic.suspended:
            raise AssertionError("a call with too short a timeout has returned")


#: How often each kind is chosen, relative to the others.
WEIGHTS: dict[Call, int] = {
    call_builtin: 20,
    call_with_objects: 20,
    call_with_a_big_tensor: 10,
    call_many_at_once: 10,
    call_through_another: 5,
    use_an_rref: 10,
    share_an_rref: 10,
    call_what_raises: 5,
    call_what_takes_too_long: 2,
}
#: The same for workers that survive others. A killed worker would leave large tensors with the owners
#: of its RRefs.
SURVIVOR_WEIGHTS: dict[Call, int] = {**WEIGHTS, create_large_rrefs: 40}
#: How many RPC calls a kind makes in sequence, if more than one. Each of them may time out.
IN_A_ROW = {use_an_rref: 4, share_an_rref: 2, create_large_rrefs: 8}


class Peers:
    """The names of the workers to call, which may include peers that were just killed.

    :param list_: the file with the names, which is replaced on changes; None to call all other workers.
    """

    def __init__(self, me: WorkerContext, list_: Path | None = None) -> None:
        self._list = list_
        self._read = -_LIST_MAX_AGE_S
        self._names = [f"worker{index}" for index in range(me.size) if index != me.index]

    def names(self) -> list[str]:
        """Return the names."""
        now = time.monotonic()
        if self._list is not None and now - self._read >= _LIST_MAX_AGE_S:
            self._read = now
            self._names = json.loads(self._list.read_text())
        return self._names


@dataclass
class Traffic:
    """The calls of one worker.

    :ivar peers: returns the names of the workers to call.
    :ivar dying: whether peers are killed, so that a call may end with an error.
    :ivar suspended: whether this worker may be suspended at any moment, so that times are not judged.
    :ivar longest: the duration of the longest call, in seconds.
    :ivar stop: set when the threads are to end.
    :ivar counts: the number of calls of each kind.
    :ivar wrong: descriptions of unexpected results.
    :ivar lock: protects ``counts``, ``wrong`` and ``longest``.
    """

    me: WorkerContext
    peers: Callable[[], list[str]]
    dying: bool = False
    suspended: bool = False
    longest: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def peer(self, chance: random.Random) -> str:
        """Return a random worker to call; sometimes this one."""
        if chance.random() < 0.02:
            return self.me.name
        return chance.choice(self.peers() or [self.me.name])

    def expect(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        """Raise an AssertionError if two tensors are not equal."""
        if not torch.equal(got, wanted):
            raise AssertionError(f"expected {wanted!r}, got {got!r}")

    def run(self, seed: int) -> None:
        """Make random calls in sequence until ``stop`` is set."""
        chance = random.Random(seed)
        kinds = SURVIVOR_WEIGHTS if self.dying and not self.suspended else WEIGHTS
        calls, weights = list(kinds), list(kinds.values())
        while not self.stop.is_set():
            (call,) = chance.choices(calls, weights)
            begin = time.monotonic()
            try:
                call(self, chance)
            except Exception as error:
                if self.dying and isinstance(error, RuntimeError):  # torch raises it for RPC errors
                    with self.lock:
                        self.counts["error"] += 1
                else:
                    self.note(f"{call.__name__}: {type(error).__name__}: {error}")
            took = time.monotonic() - begin
            limit = CALL_TIMEOUT_S * IN_A_ROW.get(call, 1) + TIMEOUT_SLACK_S
            if self.dying and not self.suspended and took > limit:
                self.note(
                    f"{call.__name__} took {took:.1f} s; a call times out after {CALL_TIMEOUT_S:g} s"
                )
            with self.lock:
                self.counts[call.__name__] += 1
                self.longest = max(self.longest, took)

    def note(self, text: str) -> None:
        """Record an unexpected result."""
        with self.lock:
            self.counts["wrong"] += 1
            if len(self.wrong) < _MAX_WRONG:
                self.wrong.append(text)

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        with self.lock:
            return sum(n for name, n in self.counts.items() if name not in {"wrong", "error"})


# --- the task of a worker -----------------------------------------------------------------------------


def work(
    me: WorkerContext,
    seconds: float,
    interval: float,
    threads: int,
    seed: int,
    leak: list[str],
    peers: Path | None = None,
) -> dict[str, Any]:
    """Make calls for ``seconds``; report their number every ``interval`` seconds, and None at the end.

    :param leak: what to leak on purpose with each report: "memory", "files", "threads".
    :param peers: the file with the names of the peers to call; None to call all workers of the group.
    """
    traffic = Traffic(me, Peers(me, peers).names, dying=peers is not None)
    started = start_threads(traffic, threads, seed * 1000 + me.index * 100)
    begin = time.monotonic()
    reported, last_progress = 0, begin
    leaked: list[Any] = []
    for tick in range(1, round(seconds / interval) + 1):
        time.sleep(max(0.0, begin + tick * interval - time.monotonic()))
        calls = traffic.calls
        if calls != reported:
            reported, last_progress = calls, time.monotonic()
        elif time.monotonic() - last_progress > CALL_END_TIMEOUT_S:
            traffic.note(f"no call of any thread has ended within {CALL_END_TIMEOUT_S:g} s")
            break
        leak_some(leak, leaked, traffic.stop)
        me.tell(calls)
    traffic.stop.set()
    for thread in started:
        thread.join(CALL_END_TIMEOUT_S)
        if thread.is_alive():
            traffic.note(f"{thread.name} has been in one call for {CALL_END_TIMEOUT_S:g} s")
    me.tell(None)
    return {
        "counts": dict(traffic.counts),
        "wrong": traffic.wrong,
        "longest": round(traffic.longest, 2),
    }


def start_threads(traffic: Traffic, threads: int, seed: int) -> list[threading.Thread]:
    """Start the threads that make calls."""
    started = [
        threading.Thread(target=traffic.run, args=(seed + n,), name=f"traffic {n}")
        for n in range(threads)
    ]
    for thread in started:
        thread.start()
    return started


def be_called_and_call(
    me: WorkerContext, names: list[str], seed: int, leave: threading.Event
) -> None:
    """Call the workers ``names`` from a thread until ``leave`` is set; report wrong results."""
    traffic = Traffic(me, lambda: names, dying=True, suspended=True)
    (caller,) = start_threads(traffic, 1, seed)
    reported = 0
    while caller.is_alive():
        if leave.wait(_LIST_MAX_AGE_S):
            traffic.stop.set()
            caller.join(_LIST_MAX_AGE_S)
        for text in traffic.wrong[reported:]:
            me.tell(text)
            reported += 1


def leak_some(what: list[str], leaked: list[Any], stop: threading.Event) -> None:
    """Leak some memory, files or threads, as requested."""
    if "memory" in what:
        leaked.append(bytearray(b"x" * (2 << 20)))
    for _ in range(3):
        if "files" in what:
            leaked.append(os.open(os.devnull, os.O_RDONLY))
        if "threads" in what:
            leaked.append(threading.Thread(target=stop.wait))
            leaked[-1].start()
