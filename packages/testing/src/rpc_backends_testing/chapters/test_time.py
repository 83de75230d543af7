"""Time: timeouts fire in time, and leave nothing behind."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from torch.distributed import rpc

from rpc_backends_processes import WorkerContext
from rpc_backends_testing.checks import (
    Call,
    asynchronous,
    checking,
    deviate,
    doing,
    expect,
    fact,
    sync,
)
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import in_group, requirement

pytestmark = requirement("time")

#: The timeout of most calls here, in seconds.
SOON = 0.4
#: A default timeout from the options, in seconds. It also limits the start of the group, so it is
#: multiplied by the timeout factor.
DEFAULT = 3.0
#: Seconds by which a timeout may be early, for coarse clocks.
EARLY = 0.05
#: Seconds by which a timeout may be late; multiplied by the timeout factor.
LATE = 2.0
#: Text in the error of every timeout.
TEXT = "RPC ran for more than set timeout"

both_ways = pytest.mark.parametrize("way", [sync, asynchronous], ids=lambda way: way.__name__)
Way = Callable[..., Call]


# --- a call that ends when the test lets it --------------------------------------------------------


class Gate:
    """A gate at which calls wait on the callee until the caller opens it.

    It consists of named pipes, so that it also opens for a callee that executes nothing else. It opens by
    itself after a while, so that a call whose timeout does not fire returns instead of hanging.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        self._pipes: list[int] = []
        for name in ("gate", "passed"):
            os.mkfifo(Path(folder, name))
        # Opened for reading and writing, so that a read never meets the end of the file.
        self._passed = os.open(Path(folder, "passed"), os.O_RDWR)
        self._lock = threading.Lock()
        self._by_itself = threading.Timer(seconds, self.open)
        self._by_itself.daemon = True
        self._by_itself.start()

    def open(self) -> None:
        """Let all calls pass, later ones too."""
        with self._lock:
            if not self._pipes:
                self._pipes.append(os.open(Path(self.folder, "gate"), os.O_RDWR))

    def wait_until_passed(self, calls: int) -> None:
        """Wait until ``calls`` calls have passed."""
        while calls > 0:
            calls -= len(os.read(self._passed, calls))

    def close(self) -> None:
        """Open the gate for good. The pipes stay open until this process ends, for passing calls."""
        self.open()
        self._by_itself.cancel()


@contextmanager
def closed_gate(timeout_factor: float, after: float = SOON) -> Iterator[Gate]:
    """Make a gate. It opens by itself once a timeout of ``after`` seconds should have fired."""
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(folder, after + LATE * timeout_factor + 1)
        try:
            yield gate
        finally:
            gate.close()


def go_through(folder: str) -> str:
    """Wait at a gate. If its files are gone, the gate is open: a call may begin after its timeout."""
    with suppress(FileNotFoundError):
        os.close(
            os.open(Path(folder, "gate"), os.O_RDONLY)
        )  # blocks until the gate opens for writing
        passed = os.open(Path(folder, "passed"), os.O_WRONLY)
        os.write(passed, b".")
        os.close(passed)
    return "through"


def add(left: int, right: int) -> int:
    return left + right


# --- checks --------------------------------------------------------------------------------------


def expect_timeout(
    call: Call, seconds: float, timeout_factor: float, begun: float | None = None
) -> None:
    """Check that a call times out after ``seconds``, neither early nor late."""
    begun = time.monotonic() if begun is None else begun
    expect(call).raises(RuntimeError, TEXT)
    took = time.monotonic() - begun
    if not seconds - EARLY <= took <= seconds + LATE * timeout_factor:
        raise deviate(
            call.text,
            f"a timeout after {seconds:g} s, at most {LATE * timeout_factor:g} s late",
            f"one after {took:.2f} s",
        )


def expect_works(to: str = "worker1") -> None:
    """Check that calls work, with a long timeout."""
    expect(sync(to, add, args=(1, 2), timeout=20)).gives(3)


# --- requirements --------------------------------------------------------------------------------


@both_ways
@in_group(2)
def test_timeout_of_a_call(me: WorkerContext, way: Way, rpc_timeout_factor: float) -> None:
    """A call fails at its timeout, with the text of torch's timeouts.

    The agent gets the timeout with the message. The text is "RPC ran for more than set timeout (N ms) and
    will now be marked with an error": torch's own tests and programs search for it.
    """
    with closed_gate(rpc_timeout_factor) as gate:
        call = way("worker1", go_through, args=(gate.folder,), timeout=SOON)
        expect_timeout(call, SOON, rpc_timeout_factor)


@in_group(1)
def test_timeout_of_a_call_to_self(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """The timeout of a worker's call to itself fires too."""
    with closed_gate(rpc_timeout_factor) as gate:
        call = sync("worker0", go_through, args=(gate.folder,), timeout=SOON)
        expect_timeout(call, SOON, rpc_timeout_factor)


@in_group(2)
def test_timeout_of_to_here(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """The timeout of `to_here` fires, and a later `to_here` fetches the value.

    `to_here` sends a separate message (PYTHON_RREF_FETCH_CALL) with its own timeout.
    """
    with closed_gate(rpc_timeout_factor) as gate:
        rref = rpc.remote("worker1", go_through, args=(gate.folder,), timeout=0)
        text = f"to_here(timeout={SOON}) of a value that is not there yet"
        expect_timeout(doing(text, lambda: rref.to_here(timeout=SOON)), SOON, rpc_timeout_factor)
        gate.open()
        expect(
            doing("to_here(timeout=20) when the value exists", lambda: rref.to_here(timeout=20))
        ).gives("through")


@in_group(2)
def test_timeout_of_remote(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """After `remote` has timed out, `to_here` of its RRef raises an error.

    The timeout applies to the message that creates the RRef. Its response comes when the value exists.
    """
    with closed_gate(rpc_timeout_factor) as gate:
        begun = time.monotonic()
        rref = rpc.remote("worker1", go_through, args=(gate.folder,), timeout=SOON)
        made = doing(
            f"remote('worker1', go_through, timeout={SOON}), its end", rref._get_future().wait
        )
        expect_timeout(made, SOON, rpc_timeout_factor, begun)
        _until_handled()
        expect(doing("to_here() of its RRef", rref.to_here)).raises(RuntimeError, "timed out")
        gate.open()
        expect_works()
        expect(sync("worker1", is_owner_soon, timeout=20)).gives(True)


def is_owner_soon() -> bool:
    """Return whether this worker owns an RRef within 10 s, whose creation has timed out for its user.

    Torch ignores a deletion that comes earlier, and the owner's shutdown then waits for one for 100 s.
    """
    end = time.monotonic() + 10
    while (
        not (owns := int(rpc._get_debug_info()["num_owner_rrefs"]) > 0) and time.monotonic() < end
    ):
        time.sleep(0.01)  # torch has no event for it
    return owns


def _until_handled() -> None:
    """Wait until torch has handled a timeout, which it does after the future is complete."""
    end = time.monotonic() + 10
    while time.monotonic() < end and _pending_in_torch():
        time.sleep(0.01)  # torch has no event for it


def _pending_in_torch() -> int:
    from torch.distributed.rpc import _rref_context_get_debug_info

    info = _rref_context_get_debug_info()
    return int(info["num_pending_futures"]) + int(info["num_pending_users"])


def test_default_timeout_of_the_options(rpc_groups: Groups, rpc_timeout_factor: float) -> None:
    """Calls without a timeout have the default of the options; a call's own timeout overrides it."""
    default = max(DEFAULT, float(math.ceil(DEFAULT * rpc_timeout_factor)))
    with rpc_groups.running(2, rpc_timeout=default) as workers:
        workers[0].call(time_out_by_default, default, rpc_timeout_factor)


@checking
def time_out_by_default(me: WorkerContext, default: float, timeout_factor: float) -> None:
    expect(doing("rpc.get_rpc_timeout()", rpc.get_rpc_timeout)).gives(default)
    with closed_gate(timeout_factor, default) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        longer = rpc.rpc_async("worker1", go_through, args=args, timeout=default + 60)
        rref = rpc.remote("worker1", add, args=(1, 2))
        call = rpc.rpc_async("worker1", go_through, args=args)
        text = f"rpc_async('worker1', go_through).wait(), with rpc_timeout={default} in the options"
        expect_timeout(doing(text, call.wait), default, timeout_factor, begun)
        expect(doing("done() of a call with a longer timeout", longer.done)).gives(False)
        gate.open()
        expect(doing("wait() of a call with a longer timeout", longer.wait)).gives("through")
        expect(doing("to_here() of a value that exists", rref.to_here)).gives(3)


@in_group(2)
def test_default_timeout_set_later(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """`rpc._set_rpc_timeout` changes the timeout of later calls."""
    before = rpc.get_rpc_timeout()
    with closed_gate(rpc_timeout_factor) as gate:
        first = rpc.rpc_async("worker1", go_through, args=(gate.folder,))
        rpc._set_rpc_timeout(SOON)
        expect(doing("rpc.get_rpc_timeout()", rpc.get_rpc_timeout)).satisfies(
            f"about {SOON}", lambda got: abs(got - SOON) < 0.01
        )
        call = asynchronous("worker1", go_through, args=(gate.folder,))
        expect_timeout(call, SOON, rpc_timeout_factor)
        rpc._set_rpc_timeout(before)
        gate.open()
        expect(doing("a call made before", first.wait)).gives("through")


@pytest.mark.parametrize("timeout", [0, 60], ids=["never", "longer"])
@in_group(2)
def test_timeout_beyond_the_default(
    me: WorkerContext, timeout: float, rpc_timeout_factor: float
) -> None:
    """A call with a timeout of 0 (none), or a longer one, outlasts the default timeout."""
    before = rpc.get_rpc_timeout()
    with closed_gate(rpc_timeout_factor) as gate:
        rpc._set_rpc_timeout(SOON)
        args = (gate.folder,)
        lasting = rpc.rpc_async("worker1", go_through, args=args, timeout=timeout)
        # This call fails when the default timeout is over.
        expect_timeout(asynchronous("worker1", go_through, args=args), SOON, rpc_timeout_factor)
        text = f"rpc_async('worker1', go_through, timeout={timeout})"
        expect(doing(f"{text}.done(), after {SOON} s", lasting.done)).gives(False)
        rpc._set_rpc_timeout(before)
        gate.open()
        expect(doing(f"{text}.wait()", lasting.wait)).gives("through")


@in_group(2)
def test_late_answer(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """A late response is dropped, and the callee goes on.

    The caller may no longer know the id of a response. That is no error, and must not end a connection.
    """
    with closed_gate(rpc_timeout_factor) as gate:
        futures = [
            rpc.rpc_async("worker1", go_through, args=(gate.folder,), timeout=SOON)
            for _ in range(3)
        ]
        for future in futures:
            text = f"rpc_async('worker1', go_through, timeout={SOON}).wait(), one of 3"
            expect(doing(text, future.wait)).raises(RuntimeError, TEXT)
        gate.open()
        gate.wait_until_passed(3)
        for number in range(20):
            call = sync("worker1", add, args=(number, 1), timeout=20)
            expect(call).gives(number + 1)
        for future in futures:
            expect(doing("wait() of the first call, again", future.wait)).raises(RuntimeError, TEXT)


@in_group(2)
def test_fifty_timeouts_at_once(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """Fifty calls time out together, each in time, and later calls work."""
    with closed_gate(rpc_timeout_factor) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=SOON) for _ in range(50)]
        for number, future in enumerate(futures):
            text = f"rpc_async('worker1', go_through, timeout={SOON}).wait(), number {number} of 50"
            expect_timeout(doing(text, future.wait), SOON, rpc_timeout_factor, begun)
        gate.open()
        gate.wait_until_passed(50)
    expect_works()


@in_group(2)
def test_different_timeouts_at_once(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """Each call in flight times out at its own time, in any order.

    A later call with a shorter timeout must wake the thread that waits for the next timeout.
    """
    with closed_gate(rpc_timeout_factor, 2 * SOON) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        ended: dict[float, float] = {}
        timeouts = (2 * SOON, SOON, 1.5 * SOON)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=t) for t in timeouts]
        for timeout, future in sorted(zip(timeouts, futures, strict=True), key=lambda p: p[0]):
            text = f"rpc_async('worker1', go_through, timeout={timeout:g}).wait(), one of 3"
            expect_timeout(doing(text, future.wait), timeout, rpc_timeout_factor, begun)
            ended[timeout] = time.monotonic()
            gone = [future.done() for future in futures]
            call = f"done() of the calls with timeouts of {timeouts} s, after {timeout:g} s"
            expect(fact(call, gone)).satisfies(
                f"True for timeouts up to {timeout:g} s", _done_by(timeouts, timeout)
            )


def _done_by(timeouts: tuple[float, ...], now: float) -> Callable[[list[bool]], bool]:
    """Make a check that overdue calls are complete. Others may be too, on a slow machine."""
    return lambda done: all(done[n] for n, timeout in enumerate(timeouts) if timeout <= now)


@in_group(2)
def test_nothing_is_left_behind(me: WorkerContext, rpc_timeout_factor: float) -> None:
    """After timeouts no request is pending, neither for torch nor for the agent.

    The timeout must remove the pending request: its response may never come.
    """
    with closed_gate(rpc_timeout_factor) as gate:
        args = (gate.folder,)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=SOON) for _ in range(5)]
        rref = rpc.remote("worker1", go_through, args=args, timeout=SOON)
        futures.append(rref._get_future())
        for future in futures:
            call = f"a call with timeout={SOON}, one of {len(futures)}"
            expect(doing(call, future.wait)).raises(RuntimeError, TEXT)
        end = time.monotonic() + LATE * rpc_timeout_factor
        while (left := _pending()) and time.monotonic() < end:
            time.sleep(0.01)  # agents have no event for it
        expect(fact("pending requests while the callee still executes them", left)).gives({})
        gate.open()
        gate.wait_until_passed(6)
        expect_works()
        expect(sync("worker1", is_owner_soon, timeout=20)).gives(True)


#: The names of the numbers of pending requests in the debug information of agents.
COUNTS = ("agent.client_active_calls", "agent.num_pending_requests")


def _pending() -> dict[str, int]:
    """Return this worker's numbers of pending requests that are not 0."""
    info = rpc.api._get_current_rpc_agent().get_debug_info()
    counts = {name: int(info[name]) for name in COUNTS if name in info}
    counts["num_pending_futures"] = _pending_in_torch()
    return {name: count for name, count in counts.items() if count}
