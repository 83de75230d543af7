"""What each kind of fault does on each backend: what runs where, and how often.

Tests check that a message is held at least as long as its rule says, and set no upper limit, because a
busy machine may take longer.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import steps
from support.packages import write_package
from support.workers import Workers

from . import fault_steps

#: The project's backends, torch's own TENSORPIPE (the project's is denied), and the example SOCKETS,
#: whose transport is in Python.
BACKENDS = [
    pytest.param("TENSORPIPE", marks=pytest.mark.slow),
    pytest.param("torch's TENSORPIPE", marks=pytest.mark.slow),
    "ZEROMQ",
    pytest.param("SOCKETS", marks=pytest.mark.slow),
]
SOCKETS = Path(__file__).parents[3] / "examples" / "sockets_backend" / "sockets_backend.py"
TIMEOUT = "RPC ran for more than set timeout"
#: The function that the rules match. Tests use other functions to inspect the results.
OURS = {"function": "*.fault_steps.do"}
_numbers = itertools.count()


@pytest.fixture(scope="module", params=BACKENDS)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Three workers with fault injection enabled."""
    with group_on(request.param, 3) as group:
        yield group
        group.run(steps.leave)
        assert [worker.end() for worker in group] == [0, 0, 0]


@contextlib.contextmanager
def group_on(backend: str, size: int) -> Iterator[Workers]:
    """Start workers over one of :data:`BACKENDS`."""
    name = backend.removeprefix("torch's ")
    with (
        tempfile.TemporaryDirectory() as folder,
        Workers(
            size, seconds=300, env={"RPC_BACKENDS_DENY": name} if name != backend else {}
        ) as group,
    ):
        if name == "SOCKETS":
            package = write_package(
                Path(folder),
                "rpc-backend-sockets",
                modules={"sockets_backend.py": SOCKETS.read_text()},
                entry_points={"rpc.backends": {"SOCKETS": "sockets_backend:BACKEND"}},
            )
            group.run(fault_steps.find_package, str(package))
        group.run(fault_steps.join, f"file://{folder}/store", name)
        yield group


@pytest.fixture
def call() -> str:
    """Return a text that is unique in this process."""
    return f"call {next(_numbers)}"


def times_done(workers: Workers, call: str) -> int:
    return int(workers[1].call(fault_steps.seen).count(call))


def test_fail_is_an_error_at_once_and_nothing_runs(workers: Workers, call: str) -> None:
    outcome, _ = workers[0].call(
        fault_steps.attempt, "worker1", call, 0, ({"what": "fail", **OURS},)
    )

    assert "RPCErr:2:Send attempt failed intentionally for PYTHON_CALL" in outcome
    assert times_done(workers, call) == 0


def test_fail_raises_the_text_of_the_rule(workers: Workers, call: str) -> None:
    rule = {"what": "fail", "text": "No route to host.", **OURS}

    assert (
        "No route to host." in workers[0].call(fault_steps.attempt, "worker1", call, 0, (rule,))[0]
    )


def test_drop_is_a_timeout_and_nothing_runs(workers: Workers, call: str) -> None:
    outcome, seconds = workers[0].call(
        fault_steps.attempt, "worker1", call, 0.2, ({"what": "drop", **OURS},)
    )

    assert TIMEOUT in outcome
    assert "(200 ms)" in outcome
    assert seconds >= 0.2
    assert times_done(workers, call) == 0


def test_delay_runs_later_and_does_not_block_the_caller(workers: Workers, call: str) -> None:
    rule = {"what": "delay", "seconds": 0.5, **OURS}
    # On a busy machine, this worker may look or the later call may return after the delay.
    for number in range(5):
        slow = workers[0].call(start_and_look, "worker1", f"{call} {number}", rule)
        assert slow["seconds"] >= 0.5
        assert times_done(workers, f"{call} {number}") == 1
        if slow["open when rpc_async returned"] and slow["overtaken by a later call"]:
            break
    assert slow["open when rpc_async returned"]
    assert slow["overtaken by a later call"]


def test_a_message_delayed_beyond_its_timeout_still_runs(workers: Workers, call: str) -> None:
    rule = {"what": "delay", "seconds": 0.4, **OURS}
    outcome, _ = workers[0].call(fault_steps.attempt, "worker1", call, 0.2, (rule,))

    assert TIMEOUT in outcome
    assert workers[1].call(fault_steps.wait_for, call).count(call) == 1


def test_reply_lost_runs_once_and_is_a_timeout(workers: Workers, call: str) -> None:
    outcome, seconds = workers[0].call(
        fault_steps.attempt, "worker1", call, 0.3, ({"what": "reply_lost", **OURS},)
    )

    assert TIMEOUT in outcome
    assert seconds >= 0.3
    assert workers[1].call(fault_steps.wait_for, call).count(call) == 1


def test_reply_fail_runs_once_and_is_an_error(workers: Workers, call: str) -> None:
    outcome, _ = workers[0].call(
        fault_steps.attempt, "worker1", call, 0, ({"what": "reply_fail", **OURS},)
    )

    assert (
        "RPCErr:2:The reply to PYTHON_CALL from 'worker1' was replaced with this error" in outcome
    )
    assert times_done(workers, call) == 1


def test_reply_delay_runs_at_once_and_returns_later(workers: Workers, call: str) -> None:
    rule = {"what": "reply_delay", "seconds": 0.3, **OURS}
    outcome, seconds = workers[0].call(fault_steps.attempt, "worker1", call, 30, (rule,))
    too_late, _ = workers[0].call(fault_steps.attempt, "worker1", f"{call} too late", 0.1, (rule,))

    assert outcome == call
    assert seconds >= 0.3
    assert TIMEOUT in too_late
    assert f"{call} too late" in workers[1].call(fault_steps.wait_for, f"{call} too late")


def test_duplicate_runs_several_times_and_returns_once(workers: Workers, call: str) -> None:
    outcome, _ = workers[0].call(
        fault_steps.attempt, "worker1", call, 0, ({"what": "duplicate", "copies": 3, **OURS},)
    )

    assert outcome == call
    assert workers[1].call(fault_steps.wait_for, call, 3).count(call) == 3


def test_reorder_lets_later_requests_overtake(workers: Workers, call: str) -> None:
    order = workers[0].call(
        reorder, "worker1", call, {"what": "reorder", "others": 3, "within": 60, "first": 1, **OURS}
    )

    assert order == [f"{call} {what}" for what in "bcda"]


def test_reorder_inverts_each_pair_of_messages(workers: Workers, call: str) -> None:
    rule = {"what": "reorder", "within": 60, "every": 2, **OURS}
    order = workers[0].call(call_in_pairs, "worker1", call, rule, (f"{call} first",))

    assert order == [f"{call} first", *inverted_pairs(call)]


def test_reorder_of_every_message_inverts_pairs(workers: Workers, call: str) -> None:
    rule = {"what": "reorder", "within": 60, **OURS}

    assert workers[0].call(call_in_pairs, "worker1", call, rule) == inverted_pairs(call)


def inverted_pairs(call: str) -> list[str]:
    """Return the calls of `call_in_pairs` with each pair inverted."""
    return [f"{call} {number}" for pair in range(20) for number in (2 * pair + 1, 2 * pair)]


def test_reorder_does_not_wait_for_ever(workers: Workers, call: str) -> None:
    rule = {"what": "reorder", "others": 5, "within": 0.2, **OURS}
    outcome, seconds = workers[0].call(fault_steps.attempt, "worker1", call, 30, (rule,))

    assert outcome == call
    assert seconds >= 0.2


def test_partition_cuts_both_directions_of_one_link_only(workers: Workers, call: str) -> None:
    rule = {"what": "partition", "sender": "worker0", "receiver": "worker1", "name": "cut"}
    for index in (0, 1):
        workers[index].call(fault_steps.add, {**rule, **OURS})

    there = workers[0].call(fault_steps.attempt, "worker1", f"{call} there", 0.2)
    back = workers[1].call(fault_steps.attempt, "worker0", f"{call} back", 0.2)
    beside = workers[0].call(fault_steps.attempt, "worker2", f"{call} beside")
    for index in (0, 1):
        workers[index].call(fault_steps.remove, "cut")

    assert TIMEOUT in there[0]
    assert TIMEOUT in back[0]
    assert beside[0] == f"{call} beside"
    assert times_done(workers, f"{call} there") == 0
    assert f"{call} back" not in workers[0].call(fault_steps.seen)


def test_a_one_way_partition_loses_replies_in_that_direction(workers: Workers, call: str) -> None:
    rule = {"what": "partition", "sender": "worker0", "receiver": "worker1", "one_way": True}

    # worker1's requests reach worker0, but worker0's replies do not come back.
    outcome, _ = workers[1].call(fault_steps.attempt, "worker0", call, 0.3, ({**rule, **OURS},))

    assert TIMEOUT in outcome
    assert call in workers[0].call(fault_steps.wait_for, call)


def test_bandwidth_makes_messages_wait_for_those_before_them(workers: Workers, call: str) -> None:
    rule = {"what": "bandwidth", "rate": 2000, "sender": "worker0", "one_way": True, **OURS}
    outcome = workers[0].call(several_at_once, "worker1", [f"{call} {'x' * 300}"] * 3, rule)

    # Three messages of 300 bytes plus overhead, at 2000 bytes per second.
    assert outcome["seconds"] >= 0.45
    assert times_done(workers, f"{call} {'x' * 300}") == 3


def test_a_paused_worker_sends_after_the_pause(workers: Workers, call: str) -> None:
    rule = {"what": "pause", "worker": "worker0", "seconds": 0.3, **OURS}
    outcome, seconds = workers[0].call(fault_steps.attempt, "worker1", call, 30, (rule,))

    assert outcome == call
    assert seconds >= 0.3
    assert times_done(workers, call) == 1


def test_a_pause_may_be_very_short(workers: Workers, call: str) -> None:
    rule = {"what": "pause", "worker": "worker0", "seconds": {"uniform": [0, 0.3]}, **OURS}
    seconds = [
        workers[0].call(fault_steps.attempt, "worker1", f"{call} {i}", 30, (rule,))[1]
        for i in range(5)
    ]

    assert 0.05 < sum(seconds) < 5


def test_a_paused_worker_replies_after_the_pause(workers: Workers, call: str) -> None:
    rule = {"what": "pause", "worker": "worker1", "seconds": 0.3, **OURS}
    outcome, seconds = workers[0].call(fault_steps.attempt, "worker1", call, 30, (rule,))
    too_late, _ = workers[0].call(fault_steps.attempt, "worker1", f"{call} too late", 0.1, (rule,))

    assert outcome == call
    assert seconds >= 0.3
    assert TIMEOUT in too_late
    assert f"{call} too late" in workers[1].call(fault_steps.wait_for, f"{call} too late")


@pytest.mark.parametrize("exit_code", [None, 17])
@pytest.mark.parametrize("backend", BACKENDS)
def test_crash_ends_the_process_and_the_others_get_errors(
    backend: str, exit_code: int | None
) -> None:
    code = {} if exit_code is None else {"exit_code": exit_code}
    with group_on(backend, 2) as workers:
        waiting = workers[1].start(call_what_crashes, "worker0", {"what": "crash", **code, **OURS})

        assert waiting.result() == "an error"
        assert workers[0].end() == (-signal.SIGKILL if exit_code is None else exit_code)
        assert "crashing" not in workers[1].call(fault_steps.seen)
        workers[1].call(steps.leave, False)


def test_a_stopped_process_sends_its_message_when_it_continues(workers: Workers, call: str) -> None:
    rule = {"what": "stop", "worker": "worker0", "seconds": 1.0, **OURS}
    stat = Path(f"/proc/{workers[0].pid}/stat")
    waiting = workers[0].start(fault_steps.attempt, "worker1", call, 30, (rule,))
    states = set()
    while not waiting.is_over(0.01):
        states.add(stat.read_text().rpartition(")")[2].split()[0])
    outcome, seconds = waiting.result()

    assert "T" in states  # stopped by a signal
    assert outcome == call
    assert seconds >= 1.0


# --- steps ----------------------------------------------------------------------------------------


def start_and_look(me: Any, to: str, call: str, rule: dict[str, Any]) -> dict[str, Any]:
    """Make a call that a rule holds, and one that it does not hold."""
    import time

    from torch.distributed import rpc

    import rpc_backends_faults as faults

    rpc.rpc_sync(to, fault_steps.also_do, args=(f"{call} earlier",))  # opens the connection
    with faults.rule(**rule):
        begin = time.monotonic()
        held = rpc.rpc_async(to, fault_steps.do, args=(call,))
        outcome: dict[str, Any] = {"open when rpc_async returned": not held.done()}
        rpc.rpc_sync(to, fault_steps.also_do, args=(f"{call} later",))
        outcome["overtaken by a later call"] = not held.done()
        held.wait()
        outcome["seconds"] = time.monotonic() - begin
    return outcome


def reorder(me: Any, to: str, call: str, rule: dict[str, Any]) -> list[str]:
    """Make four calls, the first of which is held; return the order in which they ran."""
    from torch.distributed import rpc

    import rpc_backends_faults as faults

    with faults.rule(**rule):
        first = rpc.rpc_async(to, fault_steps.do, args=(f"{call} a",))
        for letter in "bcd":
            rpc.rpc_sync(to, fault_steps.do, args=(f"{call} {letter}",))
        first.wait()
    return [what for what in rpc.rpc_sync(to, fault_steps.done) if what.startswith(call)]


def call_in_pairs(
    me: Any, to: str, call: str, rule: dict[str, Any], before: tuple[str, ...] = ()
) -> list[str]:
    """Make calls one by one, then in pairs; return the order in which they ran."""
    from torch.distributed import rpc

    import rpc_backends_faults as faults

    with faults.rule(**rule):
        for name in before:
            rpc.rpc_sync(to, fault_steps.do, args=(name,))
        for pair in range(20):
            both = [
                rpc.rpc_async(to, fault_steps.do, args=(f"{call} {2 * pair + number}",))
                for number in range(2)
            ]
            for held in both:
                held.wait()
    return [what for what in rpc.rpc_sync(to, fault_steps.done) if what.startswith(f"{call} ")]


def several_at_once(me: Any, to: str, calls: list[str], rule: dict[str, Any]) -> dict[str, Any]:
    """Make calls together, and wait for all."""
    import time

    from torch.distributed import rpc

    import rpc_backends_faults as faults

    with faults.rule(**rule):
        begin = time.monotonic()
        for held in [rpc.rpc_async(to, fault_steps.do, args=(call,)) for call in calls]:
            held.wait()
        return {"seconds": time.monotonic() - begin}


def call_what_crashes(me: Any, to: str, rule: dict[str, Any]) -> str:
    """Let another worker make a call at which a rule ends that worker's process."""
    from torch.distributed import rpc

    from rpc_backends_faults import Worker

    Worker(to).add(**rule)
    try:
        rpc.rpc_sync(to, crash_by, args=(f"worker{me.index}",), timeout=30)
    except RuntimeError:
        return "an error"
    return "an answer"


def crash_by(to: str) -> None:
    """Make a call at which the rule ends this process; another worker runs this function by RPC."""
    from torch.distributed import rpc

    rpc.rpc_sync(to, fault_steps.do, args=("crashing",))
