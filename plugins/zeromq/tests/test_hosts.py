"""Groups of workers on several hosts: they find each other and survive a network outage."""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.networks import Host, enter, hosts
from support.steps import AT_ONCE
from support.workers import WorkerContext, Workers
from support.zeromq import endpoints, eventually, exercise, join, run_counted, runs

pytestmark = pytest.mark.slow

PORT = 29500
#: Seconds without a heartbeat after which a peer is lost, in tests that need such a loss.
HEARTBEAT_TIMEOUT = 1.5
#: Number of floats that exceeds the buffers of a socket.
LONG = 4 << 20


@pytest.fixture(params=[False, True], ids=["static", "dynamic"])
def dynamic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[list[Host]]:
    with hosts(3) as made:
        yield made


@contextlib.contextmanager
def group(
    three_hosts: list[Host], text: str, dynamic: bool, family: str = "four", **options: Any
) -> Iterator[Workers]:
    """Start a group with a worker on each host; the first hosts the store."""
    address = three_hosts[0].four if family == "four" else f"[{three_hosts[0].six}]"
    url = f"tcp://{address}:{PORT}"
    with Workers(len(three_hosts), seconds=120) as workers:
        for worker, host in zip(workers, three_hosts, strict=True):
            worker.call(enter, host)
        # The workers share a kernel, so they could use Unix sockets, on which an outage has no effect.
        settings = {"secret": text, "unix_sockets": False, "dynamic": dynamic, **options}
        if dynamic:
            for worker in workers:
                worker.call(join, url, **settings)
        else:
            workers.run(join, url, **settings)
        yield workers


def leave(workers: Workers) -> None:
    """Make all workers leave, and end their processes."""
    workers.run(steps.leave)
    for worker in workers:
        worker.finish()  # all processes end at the same time
    assert [worker.end() for worker in workers] == [0] * workers.size


# --- steps and remote functions --------------------------------------------------------------------


def sum_of(rref: Any) -> float:
    """Use an RRef whose owner may be on a third host; called by RPC."""
    return float(rref.to_here().sum())


def share_an_rref(me: WorkerContext, owner: str, user: str) -> float:
    """Keep a tensor on one worker and use it from another."""
    rref = rpc.remote(owner, torch.full, args=((1000,), 2.0))
    total: float = rpc.rpc_sync(user, sum_of, args=(rref,))
    return total


@dataclass
class Caller:
    """Calls one worker from several threads, and records the outcome of each call.

    :ivar outcomes: "" or an error, by the token of the call.
    """

    me: WorkerContext
    to: str
    stop: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stage: int = 0

    #: News for the test, in this order: all three if calls fail and then work again.
    STAGES = ("calling", "failed", "again")

    def run(self, number: int) -> None:
        round_ = 0
        while not self.stop.exists():
            round_ += 1
            tokens = [f"{self.me.name}-{number}-{round_}-{n}" for n in range(5)]
            payload = torch.rand(100 if round_ % 3 else 50_000)
            futures = [rpc.rpc_async(self.to, run_counted, args=(t, payload)) for t in tokens]
            for token, future in zip(tokens, futures, strict=True):
                error = ""
                try:
                    assert future.wait() == token
                except RuntimeError as failure:
                    error = str(failure)
                self.note(token, error)
            if error:
                time.sleep(0.05)  # limits the number of calls: those to a lost peer fail at once

    def note(self, token: str, error: str) -> None:
        with self.lock:
            self.outcomes[token] = error
            if bool(error) == (self.stage == 1) and self.stage < len(self.STAGES):
                self.me.tell(self.STAGES[self.stage])
                self.stage += 1


def keep_calling(me: WorkerContext, to: str, stop: str) -> dict[str, str]:
    """Call a worker until a file exists; return the outcome of each call."""
    caller = Caller(me, to, Path(stop))
    threads = [threading.Thread(target=caller.run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return caller.outcomes


def time_an_error(me: WorkerContext, to: str) -> tuple[str, float]:
    """Call an unreachable worker; return the error and the seconds until it was raised."""
    begin = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        rpc.rpc_sync(to, run_counted, args=("late",))
    return str(caught.value), time.monotonic() - begin


def send_long_messages_to(me: WorkerContext, to: str) -> list[str]:
    """Call a worker with more data than the socket buffers until calls fail; return the errors."""
    payload = torch.rand(LONG)
    errors: list[str] = []
    waiting: collections.deque[Any] = collections.deque()
    while waiting or not errors:
        while len(waiting) < 4 and not errors:
            waiting.append(rpc.rpc_async(to, run_counted, args=("long", payload)))
        try:
            waiting.popleft().wait()
            me.tell("sending")
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def number_of_runs(me: WorkerContext, caller: str) -> int:
    """Return how many calls of a worker have run here."""
    return sum(token.startswith(f"{caller}-") for token in runs(me))


def user_timeouts(me: WorkerContext, port: int) -> list[int]:
    """Return TCP_USER_TIMEOUT, in milliseconds, of this process's connections from or to a port."""
    timeouts = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            is_socket = entry.readlink().name.startswith("socket:")
        except OSError:  # the descriptor that lists the folder
            continue
        if not is_socket:
            continue
        with socket.socket(fileno=os.dup(int(entry.name))) as same:
            if same.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            with contextlib.suppress(OSError):  # a listening socket has no peer
                if port in (same.getsockname()[1], same.getpeername()[1]):
                    timeouts.append(same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return timeouts


def can_call(me: WorkerContext, to: str) -> bool:
    """Return whether a call gets through."""
    try:
        return steps.call(me, to).split()[0] == to
    except RuntimeError:
        return False


# --- tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dynamic", "family"), [(False, "four"), (False, "six"), (True, "six")])
def test_workers_on_three_hosts_call_each_other(
    three_hosts: list[Host], text: str, dynamic: bool, family: str
) -> None:
    with group(three_hosts, text, dynamic, family) as workers:
        for worker, host in zip(workers, three_hosts, strict=True):
            (endpoint,) = worker.call(endpoints)
            where = host.four if family == "four" else f"[{host.six}]"
            assert endpoint.startswith(f"tcp://{where}:")
        for me in range(3):
            for peer in {0, 1, 2} - {me}:
                workers[me].call(exercise, f"worker{peer}")
        assert workers[0].call(share_an_rref, "worker1", "worker2") == 2000.0
        assert workers[2].call(share_an_rref, "worker0", "worker2") == 2000.0
        leave(workers)


def test_a_short_outage_loses_and_repeats_no_call(
    three_hosts: list[Host], text: str, dynamic: bool, tmp_path: Path
) -> None:
    with group(three_hosts, text, dynamic) as workers:
        stop = tmp_path / "stop"
        calling = [workers[n].start(keep_calling, "worker0", str(stop)) for n in (1, 2)]
        assert [step.news() for step in calling] == ["calling", "calling"]
        for _ in range(2):
            three_hosts[1].cut()
            time.sleep(0.3)  # the length of the outage, below the heartbeat timeout
            before = workers[0].call(number_of_runs, "worker1")
            three_hosts[1].restore()
            eventually(
                lambda before=before: workers[0].call(number_of_runs, "worker1") > before,
                lambda: "calls of worker1 arrive again",
            )
        stop.touch()
        outcomes = {**calling[0].result(), **calling[1].result()}
        assert set(outcomes.values()) == {""}
        assert workers[0].call(runs) == dict.fromkeys(outcomes, 1)
        leave(workers)


def test_a_long_outage_fails_calls_until_it_ends(
    three_hosts: list[Host], text: str, dynamic: bool, tmp_path: Path
) -> None:
    # Longer than a busy machine delays heartbeats: no other connection may be lost.
    with group(three_hosts, text, dynamic, heartbeat_timeout=4.0) as workers:
        stop = tmp_path / "stop"
        workers[2].call(exercise, "worker1")
        calling = workers[1].start(keep_calling, "worker0", str(stop))
        assert calling.news() == "calling"
        three_hosts[1].cut()
        assert calling.news() == "failed"
        # worker0 and worker2 still reach each other; their calls to worker1 fail at once.
        workers[2].call(exercise, "worker0")
        error, _ = workers[2].call(time_an_error, "worker1")
        assert "worker1" in error
        error, seconds = workers[2].call(time_an_error, "worker1")
        assert "worker1" in error
        assert seconds < AT_ONCE
        three_hosts[1].restore()
        assert calling.news() == "again"
        stop.touch()
        outcomes = calling.result()

        # A connection of before the outage, which no call has used since, fails the next call.
        pairs = ((0, 1), (1, 0), (1, 2), (2, 1))
        eventually(
            lambda: all(workers[me].call(can_call, f"worker{peer}") for me, peer in pairs),
            lambda: "worker1 can call and be called again",
        )
        ran = workers[0].call(runs)
        assert set(ran) <= set(outcomes)
        assert set(ran.values()) == {1}
        failed = {token: error for token, error in outcomes.items() if error}
        assert failed
        assert all("worker0" in error for error in failed.values())
        assert {token for token in outcomes if token not in failed} <= set(ran)
        for me, peer in pairs:
            workers[me].call(exercise, f"worker{peer}")
        leave(workers)


def test_an_outage_during_long_messages_fails_them(three_hosts: list[Host], text: str) -> None:
    # Heartbeats wait behind the long messages, so only the stuck data shows the outage.
    with group(
        three_hosts,
        text,
        dynamic=False,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        heartbeat=HEARTBEAT_TIMEOUT,
    ) as workers:
        sending = workers[2].start(send_long_messages_to, "worker1")
        assert sending.news() == "sending"
        three_hosts[1].cut()
        errors = sending.result()
        assert errors
        for error in errors:
            assert "worker1" in error
            assert f"for {HEARTBEAT_TIMEOUT:g} s" in error
        three_hosts[1].restore()
        eventually(
            lambda: workers[2].call(can_call, "worker1"), lambda: "worker1 can be called again"
        )
        leave(workers)


def test_both_ends_set_the_same_tcp_user_timeout(three_hosts: list[Host], text: str) -> None:
    # This timeout ends the stuck connections of the test above.
    with group(three_hosts, text, dynamic=False, heartbeat_timeout=HEARTBEAT_TIMEOUT) as workers:
        workers[2].call(exercise, "worker1")
        (endpoint,) = workers[1].call(endpoints)
        port = int(endpoint.rpartition(":")[2])
        for worker in workers[1:]:
            assert set(worker.call(user_timeouts, port)) == {int(HEARTBEAT_TIMEOUT * 1000)}
        leave(workers)


def test_the_error_of_a_call_names_its_killed_callee(
    three_hosts: list[Host], text: str, dynamic: bool
) -> None:
    with group(three_hosts, text, dynamic) as workers:
        waiting = [workers[n].start(call_and_wait, "worker2") for n in (0, 1)]
        assert [step.news() for step in waiting] == ["waiting", "waiting"]
        workers[2].kill()
        for step in waiting:
            error = step.result()
            assert "worker2" in error
            assert "the connection is lost" in error
        for n in (0, 1):
            error, seconds = workers[n].call(time_an_error, "worker2")
            assert "worker2" in error
            assert seconds < AT_ONCE
            workers[n].call(exercise, f"worker{1 - n}")
        workers.run(steps.leave, graceful=False)


def never_return(token: str) -> None:
    """Note that this runs, and wait for ever; called by RPC."""
    run_counted(token)
    threading.Event().wait()


def call_and_wait(me: WorkerContext, to: str) -> str:
    """Call a function that does not return, report that it runs, and return the call's error."""
    future = rpc.rpc_async(to, never_return, args=(me.name,), timeout=0)
    while me.name not in rpc.rpc_sync(to, runs, args=(None,)):
        time.sleep(0.01)
    me.tell("waiting")
    try:
        future.wait()
    except RuntimeError as error:
        return str(error)
    return ""
