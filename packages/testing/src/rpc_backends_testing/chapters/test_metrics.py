"""Metrics and debug information of a working agent."""

from __future__ import annotations

import threading
from typing import Any

from torch.distributed import rpc

from rpc_backends_processes import WorkerContext
from rpc_backends_testing.checks import doing, expect, fact, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import in_group, requirement

pytestmark = requirement("metrics")

#: Torch's name for the average time that Python waited for the GIL to run a request.
GIL = "agent.gil_average_wait_time_us"

#: Set when `hold` may return.
LET_GO = threading.Event()
HOLDING = threading.Event()


# --- what workers run ----------------------------------------------------------------------------


def add(left: int, right: int) -> int:
    return left + right


def metrics() -> Any:
    return rpc.api._get_current_rpc_agent().get_metrics()


def agents_debug_info() -> Any:
    return rpc.api._get_current_rpc_agent().get_debug_info()


def owned_rrefs() -> int:
    """Return the number of owned RRefs in torch's debug information."""
    info = rpc._get_debug_info()
    return int(info["num_owner_rrefs"])


def hold() -> str:
    """Return when `let_go` says so."""
    HOLDING.set()
    return "let go" if LET_GO.wait(20) else "nobody let go"


def is_text(metrics: Any) -> bool:
    return type(metrics) is dict and all(
        type(each) is str for pair in metrics.items() for each in pair
    )


def is_numeric(metrics: Any) -> bool:
    """Return whether every value is the text of a number."""
    try:
        for value in metrics.values():
            float(value)
    except ValueError:
        return False
    return True


# --- requirements --------------------------------------------------------------------------------


@in_group(2)
def test_metrics(me: WorkerContext) -> None:
    """`agent.get_metrics()` returns a dict of strings to numbers as strings.

    Torch may call the agent's `getMetrics` at any time, so it must not block.
    """
    expect(sync("worker1", add, args=(1, 2))).gives(3)
    reported = expect(doing("agent.get_metrics()", metrics)).satisfies(
        "a dict of str to str", is_text
    )
    expect(fact("the values of agent.get_metrics()", reported)).satisfies(
        "numbers as strings", is_numeric
    )


@in_group(2)
def test_metrics_on_callee(me: WorkerContext) -> None:
    """A function that runs for a caller can read its worker's metrics."""
    expect(sync("worker1", metrics)).satisfies("a dict of str to str", is_text)


@in_group(2)
def test_gil_wait(me: WorkerContext) -> None:
    """With GIL profiling, the metrics have the average wait for the GIL.

    Torch measures each wait and passes it to the agent (`addGilWaitTime`). The agent returns the average
    in microseconds as `agent.gil_average_wait_time_us`.
    """
    rpc.enable_gil_profiling(True)
    expect(sync("worker0", add, args=(1, 2))).gives(3)
    reported = expect(doing("agent.get_metrics() with GIL profiling on", metrics)).satisfies(
        f"a dict with {GIL!r}", lambda reported: GIL in reported
    )
    expect(fact(f"get_metrics()[{GIL!r}]", reported[GIL])).satisfies(
        "a number as a string, not negative",
        lambda text: is_numeric({GIL: text}) and float(text) >= 0,
    )


@in_group(2)
def test_debug_info(me: WorkerContext) -> None:
    """`agent.get_debug_info()` returns a dict of strings to strings that includes the metrics."""
    info = expect(doing("agent.get_debug_info()", agents_debug_info)).satisfies(
        "a dict of str to str", is_text
    )
    names = set(expect(doing("agent.get_metrics()", metrics)).returns())
    expect(fact("names of metrics that get_debug_info() lacks", sorted(names - set(info)))).gives(
        []
    )


@in_group(2)
def test_debug_info_counts_rrefs(me: WorkerContext) -> None:
    """A worker's debug information has the number of RRefs that it owns."""
    rrefs = [rpc.remote("worker1", add, args=(number, 0)) for number in range(3)]
    expect(doing("to_here() of 3 RRefs", lambda: [rref.to_here() for rref in rrefs])).gives(
        [0, 1, 2]
    )
    expect(sync("worker1", owned_rrefs)).gives(3)


def call_and_wait(me: WorkerContext) -> None:
    """Call `hold` on worker 1, look at this worker's information, and wait for the answer."""
    future = rpc.rpc_async("worker1", hold)
    me.tell("called")
    expect(doing("agent.get_metrics() with a call in flight", metrics)).satisfies(
        "a dict of str to str", is_text
    )
    expect(doing("agent.get_debug_info() with a call in flight", agents_debug_info)).satisfies(
        "a dict of str to str", is_text
    )
    expect(doing("rpc_async('worker1', hold).wait()", future.wait)).gives("let go")


def look_and_let_go(me: WorkerContext) -> None:
    """Look at this worker's information while it executes `hold`, and let `hold` return."""
    try:
        expect(doing("the request arrives at worker1", lambda: HOLDING.wait(10))).gives(True)
        expect(doing("agent.get_metrics() while a request is executed", metrics)).satisfies(
            "a dict of str to str", is_text
        )
        expect(
            doing("agent.get_debug_info() while a request is executed", agents_debug_info)
        ).satisfies("a dict of str to str", is_text)
    finally:
        LET_GO.set()


def test_while_calls_are_in_flight(rpc_groups: Groups) -> None:
    """Caller and callee can read metrics and debug information during a call."""
    with rpc_groups.running(2) as workers:
        calling = workers[0].start(call_and_wait)
        calling.news()
        workers[1].call(look_and_let_go)
        calling.result()
