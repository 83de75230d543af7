"""The causes of hangs, found in states that are made here."""

from __future__ import annotations

import time
from dataclasses import replace

from rpc_backends_inspect import causes
from rpc_backends_inspect.groups import grouped
from rpc_backends_inspect.stacks import Frame, Thread
from rpc_backends_inspect.workers import Call, WorkerState

KEY = "0123456789abcdef"


def call(number: int, to: str, function: str, thread: int) -> Call:
    """Make a call in flight."""
    return Call(
        number=number,
        call=number,
        incoming=False,
        peer=to,
        peer_id=0,
        function=f"train.{function}",
        type="PYTHON_CALL",
        thread=thread,
        begin_us=1,
        end_us=0,
        seconds=9.0,
        bytes=100,
        answer_bytes=0,
        timeout=0.0,
        state="in flight",
        error="",
    )


def serving(number: int, function: str) -> Thread:
    """Make a thread that runs a function for another worker, and waits in it for a call of its own."""
    return Thread(
        number,
        (
            Frame("/torch/distributed/rpc/api.py", 1, "rpc_sync"),
            Frame("/home/train.py", 7, function),
            Frame("/torch/distributed/rpc/internal.py", 1, "_run_function"),
        ),
    )


def busy(worker: str, calls: dict[int, tuple[str, str]], pool: int, runs: str) -> WorkerState:
    """Make a worker whose threads all run ``runs``; ``calls`` says for what each thread waits."""
    return WorkerState(
        worker,
        pid=1,
        group="env://localhost:29500",
        group_key=KEY,
        host="host",
        members={0: worker},
        in_flight=[call(thread, to, name, thread) for thread, (to, name) in calls.items()],
        threads=[serving(thread, runs) for thread in calls],
        metrics={"agent.thread_pool_size": str(pool)},
    )


def everyone_waits_for_everyone(workers: int, threads: int) -> list[WorkerState]:
    names = [f"worker{index}" for index in range(workers)]
    return [
        busy(
            name,
            {
                thread: (names[(index + 1 + thread % (workers - 1)) % workers], "update")
                for thread in range(threads)
            },
            threads,
            "update",
        )
        for index, name in enumerate(names)
    ]


def explained(states: list[WorkerState]) -> list[causes.Cause]:
    (group,) = grouped(states)
    return causes.explain(group)


def test_many_cycles_of_many_workers_are_explained_at_once() -> None:
    """There are more cycles than a computer can list."""
    states = everyone_waits_for_everyone(16, 64)
    begin = time.monotonic()
    causes = explained(states)
    # It takes 0.1 s. A list of all cycles takes longer than a day.
    assert time.monotonic() - begin < 10
    assert [cause.kind for cause in causes] == ["cycle", "threads"]
    assert len(causes[0].workers) == 16


def test_a_group_of_cycles_is_one_cause_with_a_shortest_cycle() -> None:
    causes = explained(everyone_waits_for_everyone(8, 14))
    assert causes[0].text == (
        "8 workers wait for each other: 'worker0', 'worker1', 'worker2', 'worker3', 'worker4' and 3 "
        "more. A shortest cycle: 'worker0' waits for 'worker1' in `update`, which waits for 'worker0' in "
        "`update`; there, 'worker0' is at update (train.py:7)"
    )


def test_used_up_pools_of_many_workers_are_one_cause() -> None:
    causes = explained(everyone_waits_for_everyone(3, 4))
    assert causes[1].text.startswith(
        "all 4 threads of each of 'worker0', 'worker1' and 'worker2' are used up: they run `update` "
        "for other workers"
    )


def test_a_used_up_pool_of_one_thread_is_in_the_singular() -> None:
    causes = explained(everyone_waits_for_everyone(2, 1))
    assert "the only thread of each of 'worker0' and 'worker1' is used up: it runs `update`" in (
        causes[1].text
    )


def test_a_pool_taken_by_other_calls_is_named_with_its_functions() -> None:
    """Worker `b` waits in shutdown, as a server does; that is not why calls to it wait."""
    caller = busy("a", dict.fromkeys(range(1, 7), ("b", "nap")), 8, "main")
    server = busy("b", {}, 4, "nap")
    naps = [
        Thread(
            number,
            (
                Frame("/home/train.py", 7, "nap"),
                Frame("/torch/distributed/rpc/internal.py", 1, "_run_function"),
            ),
        )
        for number in range(1, 5)
    ]
    waiting = Thread(9, (Frame("/torch/distributed/rpc/api.py", 1, "shutdown"),))
    [first, *_] = explained([caller, replace(server, threads=[*naps, waiting])])
    assert first.text.startswith(
        "all 4 threads of 'b' are taken: 4 x `nap`; 6 calls of 'a' to it run or wait for a thread."
    )


def test_two_deadlocks_are_two_causes() -> None:
    """`c` and `d` wait for each other too, and neither pair waits for the other one."""
    pairs = ("a", "b"), ("c", "d")
    states = [
        busy(name, {1: (waited_for, "update")}, 4, "update")
        for pair in pairs
        for name, waited_for in (pair, pair[::-1])
    ]
    assert [cause.workers for cause in explained(states)] == [("a", "b"), ("c", "d")]


def test_a_long_cycle_is_named_in_full() -> None:
    ring = "abcde"
    states = [
        busy(name, {1: (ring[(index + 1) % 5], "update")}, 4, "update")
        for index, name in enumerate(ring)
    ]
    (cause,) = explained(states)
    assert cause.text.startswith(
        "'a' waits for 'b' in `update`, which waits for 'c' in `update`, which waits for 'd' in"
    )
