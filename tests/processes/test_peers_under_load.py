"""Workers that call each other all the time, while one of them is killed and replaced, or suspended."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed import rpc

from support import engines, steps
from support.engines import ENGINES
from support.steps import AT_ONCE
from support.workers import WorkerContext, Workers, suspend
from support.zeromq import eventually

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("engine", ENGINES)]

NAMES = [f"worker{number}" for number in range(4)]
#: The worker to which the tests do something, and the indices of the others.
LAST, OTHERS = NAMES[3], [0, 1, 2]
#: Elements of a small tensor, and of one of 1 MiB.
SMALL, LARGE = 1, 1 << 18
#: Seconds within which a call to a killed worker must fail: below its timeout, and below the time after
#: which a silent peer is lost.
PROMPT = AT_ONCE
#: Seconds after which calls to the suspended worker time out.
TIMEOUT = 1.0
#: By how much a suspended worker may delay small calls between the others, in one of several trials:
#: by seconds or, on a busy machine, by a share of what they take otherwise.
DELAY, SHARE = 0.003, 0.5
#: Small calls of each worker that are measured, and seconds after which there are no more trials.
MEASURED = 100
LAST_TRIAL = 90


class Call(NamedTuple):
    """A call that has ended."""

    peer: str
    size: int
    begin: float
    end: float
    error: str


class Traffic:
    """Threads that call each peer, one with small and one with large tensors."""

    def __init__(self, peers: list[str], pause: float) -> None:
        self.calls: list[Call] = []
        self.wanted = threading.Event()
        self.pause = pause
        self.threads = [
            threading.Thread(target=self.run, args=(peer, size))
            for peer in peers
            for size in (SMALL, LARGE)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, peer: str, size: int) -> None:
        tensor = torch.arange(size, dtype=torch.float32)
        while not self.wanted.wait(self.pause):
            begin = time.monotonic()
            try:
                result = rpc.rpc_sync(peer, torch.neg, args=(tensor,))
                error = "" if torch.equal(result, -tensor) else "a wrong result"
            except RuntimeError as failure:
                error = str(failure)
            self.calls.append(Call(peer, size, begin, time.monotonic(), error))


def join(me: WorkerContext, url: str, engine: str, name: str) -> None:
    """Join the dynamic group under a name, which determines the rank."""
    me.memory["me"] = mine = replace(me, name=name, index=NAMES.index(name))
    engines.join(mine, url, engine, dynamic=True)


def start(me: WorkerContext, peers: list[str]) -> None:
    """Start to call the peers."""
    others = [peer for peer in peers if peer != me.memory["me"].name]
    me.memory["traffic"] = Traffic(others, pause=0.01)


def stop(me: WorkerContext) -> list[Call]:
    """Stop the calls, and return all of them."""
    traffic = me.memory["traffic"]
    traffic.wanted.set()
    for thread in traffic.threads:
        thread.join()
    return list(traffic.calls)


def wait_for_calls(me: WorkerContext, begun_after: float, peers: list[str], failed: bool) -> None:
    """Wait until calls of both sizes to the peers have succeeded or failed."""
    wanted = {
        (peer, size) for peer in peers if peer != me.memory["me"].name for size in (SMALL, LARGE)
    }

    def missing() -> set[tuple[str, int]]:
        calls = list(me.memory["traffic"].calls)
        return wanted - {
            call[:2] for call in calls if call.begin > begun_after and (call.error != "") == failed
        }

    eventually(lambda: not missing(), lambda: f"calls to {missing()}", seconds=60)


def form(workers: Workers, tmp_path: Path, engine: str) -> str:
    """Form the group; return the URL."""
    url = f"file://{tmp_path}/store"
    for worker, name in zip(workers, NAMES, strict=True):
        worker.call(join, url, engine, name)
    return url


def shared_memory() -> set[str]:
    """Return the names of UCX's files in shared memory."""
    return {path.name for path in Path("/dev/shm").glob("ucx_*")}


def test_a_killed_worker_fails_its_callers_and_is_replaced(engine: str, tmp_path: Path) -> None:
    """The others go on calling each other, and find the process that takes the worker's name."""
    before = shared_memory()
    with Workers(4, seconds=120) as workers:
        url = form(workers, tmp_path, engine)
        workers.run(start, NAMES)
        workers.run(wait_for_calls, 0.0, NAMES, False)
        killed = time.monotonic()
        workers[3].kill()
        workers.run(wait_for_calls, killed, [LAST], True, on=OTHERS)
        new = workers.add()
        new.call(join, url, engine, LAST)
        joined = time.monotonic()
        workers.run(wait_for_calls, joined, NAMES, False, on=OTHERS)
        calls = [call for some in workers.run(stop, on=OTHERS) for call in some]
        workers.run(steps.leave, False, on=[*OTHERS, new.index])

    failed = [call for call in calls if call.error]
    assert {call.peer for call in failed} == {LAST}
    # The transport has the second text until the agent knows, too. The third one comes while the new
    # process takes the place of the killed one.
    expected = (
        "the connection is lost: ",
        f"worker {NAMES.index(LAST)} is lost: ",
        f"worker '{LAST}' has left the group",
        f"worker '{LAST}' has ended without shutdown()",
    )
    assert [call.error for call in failed if not any(text in call.error for text in expected)] == []
    assert max(call.end - max(call.begin, killed) for call in failed) < PROMPT
    eventually(lambda: shared_memory() <= before, lambda: f"{before} alone in /dev/shm")


def flood(me: WorkerContext, to: str) -> tuple[set[str], float]:
    """Make many calls at the same time; return their errors, and how long the last one took."""
    tensors = [torch.ones(size, dtype=torch.uint8) for size in (100, 20_000)] * 300
    begin = time.monotonic()
    calls = [rpc.rpc_async(to, torch.neg, args=(tensor,), timeout=TIMEOUT) for tensor in tensors]
    return {error(call.wait) for call in calls}, time.monotonic() - begin


def error(wait: Callable[[], Any]) -> str:
    """Return the error of a call, without its numbers."""
    try:
        wait()
    except RuntimeError as failure:
        return str(failure).partition("(")[0]
    return "no error"


def delay(workers: Workers) -> float:
    """Suspend the last worker for seconds; return by how much small calls between the others took longer.

    The time of a call is that of which a quarter of the calls need less. The delay is a multiple of the
    one that is allowed.
    """
    workers.run(steps.call_all)
    workers.run(start, NAMES[:3], on=OTHERS)
    workers.run(wait_for_small_calls, 0.0, on=OTHERS)
    before = workers.run(stop, on=OTHERS)
    suspend(workers[3].pid)
    try:
        workers.run(start, NAMES[:3], on=OTHERS)
        floods = workers.run(flood, LAST, on=OTHERS)
        flooded = time.monotonic()
        workers.run(wait_for_small_calls, flooded, on=OTHERS)
        during = workers.run(stop, on=OTHERS)
    finally:
        os.kill(workers[3].pid, signal.SIGCONT)
    for errors, seconds in floods:
        assert errors == {"RPCErr:1:RPC ran for more than set timeout "}
        assert seconds < TIMEOUT + AT_ONCE
    assert not [call.error for calls in (*before, *during) for call in calls if call.error]
    usual = [quartile(calls, 0.0) for calls in before]
    delayed = [quartile(calls, flooded) for calls in during]
    return max(
        (later - earlier) / max(DELAY, SHARE * earlier)
        for earlier, later in zip(usual, delayed, strict=True)
    )


def small_calls(calls: list[Call], since: float) -> list[float]:
    """Return the times of the small calls that were made since then."""
    return [call.end - call.begin for call in calls if call.size == SMALL and call.begin > since]


def quartile(calls: list[Call], since: float) -> float:
    """Return the time of which a quarter of the small calls need less."""
    return statistics.quantiles(small_calls(calls, since))[0]


def wait_for_small_calls(me: WorkerContext, since: float) -> None:
    """Wait until this worker has made enough small calls."""
    calls = me.memory["traffic"].calls
    eventually(
        lambda: len(small_calls(list(calls), since)) >= MEASURED,
        lambda: f"{MEASURED} small calls: {calls[-10:]}",
        seconds=60,
    )


def test_a_suspended_worker_delays_only_calls_to_itself(engine: str, tmp_path: Path) -> None:
    """These time out at their timeout, although many messages wait for the worker.

    Other processes of this machine may delay calls, too, but not each time.
    """
    delays: list[float] = []
    with Workers(4, seconds=LAST_TRIAL + 240) as workers:
        form(workers, tmp_path, engine)
        end = time.monotonic() + LAST_TRIAL
        while not delays or (delays[-1] >= 1 and time.monotonic() < end):
            delays.append(delay(workers))
        workers.run(steps.call_all)
        workers.run(steps.leave)

    assert min(delays) < 1, delays
