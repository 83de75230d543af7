"""Time: timeouts fire when they should, and leave nothing behind."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from torch.distributed import rpc

from rpc_backends_cli.processes import WorkerContext
from rpc_backends_testing.checks import (
    Call,
    asynchronous,
    deviate,
    doing,
    expect,
    fact,
    sync,
)
from rpc_backends_testing.marks import in_group, requirement

pytestmark = requirement("time")

#: The timeout of most calls here, in seconds.
SOON = 0.4
#: A default timeout from the options; starting a group is under it too.
DEFAULT = 3.0
#: Seconds that a timeout may be early, for clocks that tick.
EARLY = 0.05
#: Seconds that it may be late, times the patience.
LATE = 2.0
#: What the text of every timeout says.
TEXT = "RPC ran for more than set timeout"

both_ways = pytest.mark.parametrize("way", [sync, asynchronous], ids=lambda way: way.__name__)
Way = Callable[..., Call]


# --- a call that does not end before it may -------------------------------------------------------


class Gate:
    """What calls wait at on the callee until the caller opens it.

    It is made of named pipes, so that it opens for a callee that executes nothing else meanwhile. It
    opens by itself after a while: a timeout that does not fire is then a result, and no hang.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        self._pipes: list[int] = []
        for name in ("gate", "passed"):
            os.mkfifo(Path(folder, name))
        self._passed = os.open(Path(folder, "passed"), os.O_RDWR)  # never at its end
        self._lock = threading.Lock()
        self._by_itself = threading.Timer(seconds, self.open)
        self._by_itself.daemon = True
        self._by_itself.start()

    def open(self) -> None:
        """Let all calls through, also those that come later."""
        with self._lock:
            if not self._pipes:
                self._pipes.append(os.open(Path(self.folder, "gate"), os.O_RDWR))

    def wait_until_passed(self, calls: int) -> None:
        """Wait until so many have come through."""
        while calls > 0:
            calls -= len(os.read(self._passed, calls))

    def close(self) -> None:
        """Open it for good: the pipes stay, for who is on the way through, as long as this process."""
        self.open()
        self._by_itself.cancel()


@contextmanager
def closed_gate(patience: float, after: float = SOON) -> Iterator[Gate]:
    """Make a gate that opens when a timeout of ``after`` seconds is later than allowed."""
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(folder, after + LATE * patience + 1)
        try:
            yield gate
        finally:
            gate.close()


def go_through(folder: str) -> str:
    """Wait at a gate; it is open when it is gone, as for a call that is begun after its time is over."""
    with suppress(FileNotFoundError):
        os.close(os.open(Path(folder, "gate"), os.O_RDONLY))  # waits for who opens it to write
        passed = os.open(Path(folder, "passed"), os.O_WRONLY)
        os.write(passed, b".")
        os.close(passed)
    return "through"


def add(left: int, right: int) -> int:
    return left + right


# --- checks --------------------------------------------------------------------------------------


def expect_timeout(call: Call, seconds: float, patience: float, begun: float | None = None) -> None:
    """Check that a call ends by a timeout of ``seconds``, neither early nor late."""
    begun = time.monotonic() if begun is None else begun
    expect(call).raises(RuntimeError, TEXT)
    took = time.monotonic() - begun
    if not seconds - EARLY <= took <= seconds + LATE * patience:
        raise deviate(
            call.text,
            f"a timeout after {seconds:g} s, at most {LATE * patience:g} s late",
            f"one after {took:.2f} s",
        )


def expect_works(to: str = "worker1") -> None:
    """Check that calls work; with a timeout that is not about to fire."""
    expect(sync(to, add, args=(1, 2), timeout=20)).gives(3)


# --- requirements --------------------------------------------------------------------------------


@both_ways
@in_group(2)
def test_timeout_of_a_call(me: WorkerContext, way: Way, rpc_patience: float) -> None:
    """A call with a timeout fails when that is over, with the text that torch's timeouts have.

    The agent gets the timeout with the message. The text is to be "RPC ran for more than set timeout (N
    ms) and will now be marked with an error": torch's own tests and programs look for it.
    """
    with closed_gate(rpc_patience) as gate:
        call = way("worker1", go_through, args=(gate.folder,), timeout=SOON)
        expect_timeout(call, SOON, rpc_patience)


@in_group(1)
def test_timeout_of_a_call_to_self(me: WorkerContext, rpc_patience: float) -> None:
    """The timeout of a call to oneself fires too."""
    with closed_gate(rpc_patience) as gate:
        call = sync("worker0", go_through, args=(gate.folder,), timeout=SOON)
        expect_timeout(call, SOON, rpc_patience)


@in_group(2)
def test_timeout_of_to_here(me: WorkerContext, rpc_patience: float) -> None:
    """The timeout of `to_here` fires, and the value can be fetched when it is there.

    Fetching a value is a message of its own (PYTHON_RREF_FETCH_CALL), with a timeout of its own.
    """
    with closed_gate(rpc_patience) as gate:
        rref = rpc.remote("worker1", go_through, args=(gate.folder,), timeout=0)
        text = f"to_here(timeout={SOON}) of a value that is not there yet"
        expect_timeout(doing(text, lambda: rref.to_here(timeout=SOON)), SOON, rpc_patience)
        gate.open()
        expect(doing("to_here(timeout=20) when it is", lambda: rref.to_here(timeout=20))).gives(
            "through"
        )


@in_group(2)
def test_timeout_of_remote(me: WorkerContext, rpc_patience: float) -> None:
    """The timeout of `remote` fires, and `to_here` of its RRef is then an error.

    It is the timeout of the message that makes the RRef, which is answered when its value is there.
    """
    with closed_gate(rpc_patience) as gate:
        begun = time.monotonic()
        rref = rpc.remote("worker1", go_through, args=(gate.folder,), timeout=SOON)
        made = doing(
            f"remote('worker1', go_through, timeout={SOON}), its end", rref._get_future().wait
        )
        expect_timeout(made, SOON, rpc_patience, begun)
        _until_handled()
        expect(doing("to_here() of its RRef", rref.to_here)).raises(RuntimeError, "timed out")
    expect_works()


def _until_handled() -> None:
    """Wait until torch has taken note of a timeout: it does so after the future is done."""
    end = time.monotonic() + 10
    while time.monotonic() < end and _pending_in_torch():
        time.sleep(0.01)  # nothing says when


def _pending_in_torch() -> int:
    from torch.distributed.rpc import _rref_context_get_debug_info

    found = _rref_context_get_debug_info()
    return int(found["num_pending_futures"]) + int(found["num_pending_users"])


@in_group(2, rpc_timeout=DEFAULT)
def test_default_timeout_of_the_options(me: WorkerContext, rpc_patience: float) -> None:
    """Calls without a timeout have that of the options, and a longer one of their own wins."""
    expect(doing("rpc.get_rpc_timeout()", rpc.get_rpc_timeout)).gives(DEFAULT)
    with closed_gate(rpc_patience, DEFAULT) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        longer = rpc.rpc_async("worker1", go_through, args=args, timeout=60)
        rref = rpc.remote("worker1", add, args=(1, 2))
        call = rpc.rpc_async("worker1", go_through, args=args)
        text = f"rpc_async('worker1', go_through).wait(), with rpc_timeout={DEFAULT} in the options"
        expect_timeout(doing(text, call.wait), DEFAULT, rpc_patience, begun)
        expect(doing("done() of one with timeout=60", longer.done)).gives(False)
        gate.open()
        expect(doing("rpc_async('worker1', go_through, timeout=60).wait()", longer.wait)).gives(
            "through"
        )
        expect(doing("to_here() of a value that is there", rref.to_here)).gives(3)


@in_group(2)
def test_default_timeout_set_later(me: WorkerContext, rpc_patience: float) -> None:
    """`rpc._set_rpc_timeout` changes the timeout of the calls that come after it."""
    before = rpc.get_rpc_timeout()
    with closed_gate(rpc_patience) as gate:
        first = rpc.rpc_async("worker1", go_through, args=(gate.folder,))
        rpc._set_rpc_timeout(SOON)
        expect(doing("rpc.get_rpc_timeout()", rpc.get_rpc_timeout)).satisfies(
            f"about {SOON}", lambda got: abs(got - SOON) < 0.01
        )
        call = asynchronous("worker1", go_through, args=(gate.folder,))
        expect_timeout(call, SOON, rpc_patience)
        rpc._set_rpc_timeout(before)
        gate.open()
        expect(doing("a call made before", first.wait)).gives("through")


@pytest.mark.parametrize("timeout", [0, 60], ids=["never", "longer"])
@in_group(2)
def test_timeout_beyond_the_default(me: WorkerContext, timeout: float, rpc_patience: float) -> None:
    """A call with a timeout of 0, which is never, or one beyond the default outlasts the default."""
    before = rpc.get_rpc_timeout()
    with closed_gate(rpc_patience) as gate:
        rpc._set_rpc_timeout(SOON)
        args = (gate.folder,)
        lasting = rpc.rpc_async("worker1", go_through, args=args, timeout=timeout)
        # That the default is over is known by a call that has it.
        expect_timeout(asynchronous("worker1", go_through, args=args), SOON, rpc_patience)
        text = f"rpc_async('worker1', go_through, timeout={timeout})"
        expect(doing(f"{text}.done(), after {SOON} s", lasting.done)).gives(False)
        rpc._set_rpc_timeout(before)
        gate.open()
        expect(doing(f"{text}.wait()", lasting.wait)).gives("through")


@in_group(2)
def test_late_answer(me: WorkerContext, rpc_patience: float) -> None:
    """The answer of a call that has timed out is dropped, and the callee goes on.

    It may come when its id is no longer known: that is no error, and must not end a connection.
    """
    with closed_gate(rpc_patience) as gate:
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
            expect(doing("wait() of the first call, once more", future.wait)).raises(
                RuntimeError, TEXT
            )


@in_group(2)
def test_fifty_timeouts_at_once(me: WorkerContext, rpc_patience: float) -> None:
    """Fifty calls that run out of time together all fail by it, each in time, and calls work after."""
    with closed_gate(rpc_patience) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=SOON) for _ in range(50)]
        for number, future in enumerate(futures):
            text = f"rpc_async('worker1', go_through, timeout={SOON}).wait(), number {number} of 50"
            expect_timeout(doing(text, future.wait), SOON, rpc_patience, begun)
        gate.open()
        gate.wait_until_passed(50)
    expect_works()


@in_group(2)
def test_different_timeouts_at_once(me: WorkerContext, rpc_patience: float) -> None:
    """Calls in flight time out each at its own time, whichever was made first.

    A later call with a shorter timeout must wake who waits for the next one to fire.
    """
    with closed_gate(rpc_patience, 2 * SOON) as gate:
        begun = time.monotonic()
        args = (gate.folder,)
        ended: dict[float, float] = {}
        timeouts = (2 * SOON, SOON, 1.5 * SOON)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=t) for t in timeouts]
        for timeout, future in sorted(zip(timeouts, futures, strict=True), key=lambda p: p[0]):
            text = f"rpc_async('worker1', go_through, timeout={timeout:g}).wait(), one of 3"
            expect_timeout(doing(text, future.wait), timeout, rpc_patience, begun)
            ended[timeout] = time.monotonic()
            gone = [other.done() for other in futures]
            expect(fact(f"done() of the calls with {timeouts} s, after this", gone)).satisfies(
                "done, where the time is over", _done_by(timeouts, timeout)
            )


def _done_by(timeouts: tuple[float, ...], now: float) -> Callable[[list[bool]], bool]:
    """Make a check that those whose time is over are done; others may be, if this machine was slow."""
    return lambda done: all(done[n] for n, timeout in enumerate(timeouts) if timeout <= now)


@in_group(2)
def test_nothing_is_left_behind(me: WorkerContext, rpc_patience: float) -> None:
    """After calls have timed out no request is pending, by torch's count and by the agent's own.

    What waits for an answer must go with the timeout, and not with the answer, which may never come.
    """
    with closed_gate(rpc_patience) as gate:
        args = (gate.folder,)
        futures = [rpc.rpc_async("worker1", go_through, args=args, timeout=SOON) for _ in range(5)]
        rref = rpc.remote("worker1", go_through, args=args, timeout=SOON)
        futures.append(rref._get_future())
        for future in futures:
            call = f"a call with timeout={SOON}, one of {len(futures)}"
            expect(doing(call, future.wait)).raises(RuntimeError, TEXT)
        end = time.monotonic() + LATE * rpc_patience
        while (left := _pending()) and time.monotonic() < end:
            time.sleep(0.01)  # nothing says when
        expect(fact("requests that are pending while the callee still executes them", left)).gives(
            {}
        )
        gate.open()
        gate.wait_until_passed(6)
    expect_works()


#: What agents call the number of requests that wait for an answer, in their debug information.
COUNTS = ("agent.client_active_calls", "agent.num_pending_requests")


def _pending() -> dict[str, int]:
    """Return the numbers of what is pending here that are not 0."""
    found = rpc.api._get_current_rpc_agent().get_debug_info()
    counts = {name: int(found[name]) for name in COUNTS if name in found}
    counts["num_pending_futures"] = _pending_in_torch()
    return {name: count for name, count in counts.items() if count}
