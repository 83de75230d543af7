"""Metrics and debug information: what an agent says of itself while it works."""

from __future__ import annotations

import threading
from typing import Any

from torch.distributed import rpc

from rpc_backends_cli.processes import WorkerContext
from rpc_backends_testing.checks import doing, expect, fact, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import in_group, requirement

pytestmark = requirement("metrics")

#: How long Python waited for its lock when requests were run, on average: torch's name for it.
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
    """Return what torch's debug information counts; it is the agent's, that of RRefs and of autograd."""
    info = rpc._get_debug_info()
    return int(info["num_owner_rrefs"])


def hold() -> str:
    """Return when `let_go` says so."""
    HOLDING.set()
    return "let go" if LET_GO.wait(20) else "nobody let go"


def is_text(found: Any) -> bool:
    return type(found) is dict and all(type(each) is str for pair in found.items() for each in pair)


def is_numeric(found: Any) -> bool:
    """Tell whether every value is the text of a number."""
    try:
        for value in found.values():
            float(value)
    except ValueError:
        return False
    return True


# --- requirements --------------------------------------------------------------------------------


@in_group(2)
def test_metrics(me: WorkerContext) -> None:
    """`agent.get_metrics()` is a dict of text to numbers as text.

    The agent's `getMetrics` gives a map of strings; it is called at any time and must not block.
    """
    expect(sync("worker1", add, args=(1, 2))).gives(3)
    found = expect(doing("agent.get_metrics()", metrics)).satisfies("a dict of str to str", is_text)
    expect(fact("the values of agent.get_metrics()", found)).satisfies(
        "texts of numbers", is_numeric
    )


@in_group(2)
def test_metrics_on_callee(me: WorkerContext) -> None:
    """A worker that executes a request can look at its own metrics."""
    expect(sync("worker1", metrics)).satisfies("a dict of str to str", is_text)


@in_group(2)
def test_gil_wait(me: WorkerContext) -> None:
    """With GIL profiling on, the metrics say how long Python functions waited for the GIL.

    Torch measures it where a Python function is run and tells the agent (`addGilWaitTime`), which gives
    the average of all, in microseconds, as `agent.gil_average_wait_time_us`.
    """
    rpc.enable_gil_profiling(True)
    expect(sync("worker0", add, args=(1, 2))).gives(3)
    found = expect(doing("agent.get_metrics() with GIL profiling on", metrics)).satisfies(
        f"a dict with {GIL!r}", lambda found: GIL in found
    )
    expect(fact(f"get_metrics()[{GIL!r}]", found[GIL])).satisfies(
        "the text of a number, not negative",
        lambda text: is_numeric({GIL: text}) and float(text) >= 0,
    )


@in_group(2)
def test_debug_info(me: WorkerContext) -> None:
    """`agent.get_debug_info()` is a dict of text to text and has what the metrics have."""
    found = expect(doing("agent.get_debug_info()", agents_debug_info)).satisfies(
        "a dict of str to str", is_text
    )
    names = set(expect(doing("agent.get_metrics()", metrics)).returns())
    expect(fact("names of metrics that get_debug_info() lacks", sorted(names - set(found)))).gives(
        []
    )


@in_group(2)
def test_debug_info_counts_rrefs(me: WorkerContext) -> None:
    """The debug information of a worker counts the RRefs that it owns."""
    rrefs = [rpc.remote("worker1", add, args=(number, 0)) for number in range(3)]
    expect(doing("to_here() of 3 RRefs", lambda: [one.to_here() for one in rrefs])).gives([0, 1, 2])
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
    """Look at this worker's information while it executes `hold`, and end that."""
    try:
        expect(doing("the request arrives at worker1", lambda: HOLDING.wait(10))).gives(True)
        expect(doing("agent.get_metrics() while a request is executed", metrics)).satisfies(
            "a dict of str to str", is_text
        )
        expect(doing("agent.get_debug_info() while one is", agents_debug_info)).satisfies(
            "a dict of str to str", is_text
        )
    finally:
        LET_GO.set()


def test_while_calls_are_in_flight(rpc_groups: Groups) -> None:
    """Metrics and debug information can be had on both sides while a call is in flight."""
    with rpc_groups.running(2) as workers:
        calling = workers[0].start(call_and_wait)
        calling.news()
        workers[1].call(look_and_let_go)
        calling.result()
