"""Faults of tensors and of the whole process: corrupted tensors, memory, stores, clock."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import steps
from support.workers import Workers

from . import fault_steps

FUNCTION = {"function": "torch.ops.aten.*"}


@pytest.fixture(
    scope="module", params=["ZEROMQ", pytest.param("TENSORPIPE", marks=pytest.mark.slow)]
)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Two workers with fault injection enabled."""
    with tempfile.TemporaryDirectory() as folder, Workers(2, seconds=300) as group:
        group.run(fault_steps.join, f"file://{folder}/store", request.param)
        yield group
        group.run(steps.leave)


def test_corrupt_changes_one_element_of_the_arguments(workers: Workers) -> None:
    rule = {"what": "corrupt", "element": 2, "bit": 31, **FUNCTION}  # the sign of a float32
    tensors = workers[0].call(call_with_tensors, rule)

    assert tensors["result"] == [1.0, 2.0, -3.0, 4.0]
    assert tensors["own"] == [1.0, 2.0, 3.0, 4.0]


def test_corrupt_counts_the_elements_of_all_tensors(workers: Workers) -> None:
    rule = {"what": "corrupt", "element": 4 + 1, "bit": 31, **FUNCTION}

    # The second tensor, which is added, is one element of value 0 and another of value 5.
    assert workers[0].call(add_two, rule) == [1.0, 2.0 - 5.0]


def test_corrupt_leaves_messages_without_tensors_alone(workers: Workers, tmp_path: Path) -> None:
    rule = {"what": "corrupt", "function": "*.fault_steps.do"}
    result, fired = workers[0].call(call_without_tensors, rule)

    assert (result, fired) == ("no tensors", 0)


def test_reply_corrupt_changes_one_element_of_the_result(workers: Workers) -> None:
    rule = {"what": "reply_corrupt", "element": 0, "bit": 31, **FUNCTION}

    assert workers[0].call(call_with_tensors, rule)["result"] == [-1.0, 2.0, 3.0, 4.0]


def test_the_same_message_is_corrupted_in_the_same_place(workers: Workers) -> None:
    rule = {"what": "corrupt", "name": "drawn", **FUNCTION}
    first, again, by_another_rule = (
        workers[0].call(corrupted_bytes, {**rule, "name": name}) for name in ("a", "a", "b")
    )

    assert first == again
    assert first != by_another_rule  # another rule draws another place
    assert first.count("1") == 1


@pytest.mark.slow
def test_memory_makes_large_allocations_fail_for_a_time(workers: Workers) -> None:
    rule = {"what": "memory", "bytes": 2**24, "seconds": 5.0, "function": "*.fault_steps.do"}
    allocations = workers[0].call(allocate_under_pressure, rule)

    assert "memory" in allocations["during"]
    assert allocations["after"] == "allocated"


def test_memory_comes_back_where_no_thread_can_be_started(workers: Workers) -> None:
    less_than_a_stack = {"what": "memory", "bytes": 2**22, "seconds": 1.0}
    rule = {**less_than_a_stack, "function": "*.fault_steps.do"}

    assert workers[0].call(allocate_under_pressure, rule)["after"] == "allocated"


def test_stores_do_not_answer_until_the_time_is_over(workers: Workers) -> None:
    rule = {"what": "store", "seconds": 0.5, "function": "*.fault_steps.do"}

    assert workers[0].call(ask_store, rule, 1) >= 0.3


def test_each_request_to_a_slow_store_takes_longer(workers: Workers) -> None:
    rule = {"what": "store", "seconds": 60, "each": 0.2, "function": "*.fault_steps.do"}

    assert workers[1].call(ask_store, rule, 3) >= 0.6


def test_the_clock_of_python_jumps_and_other_clocks_do_not(workers: Workers) -> None:
    rule = {"what": "clock", "by": -3600.0, "function": "*.fault_steps.do"}
    clocks = workers[0].call(read_clocks, rule)

    assert clocks.pop("monotonic") < 600
    assert {name: round(moved / 600) for name, moved in clocks.items()} == {
        "time": -6,
        "imported": -6,
        "datetime": -6,
        "localtime": -6,
    }


# --- steps ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def fault(rule: dict[str, Any]) -> Iterator[str]:
    import rpc_backends_faults as faults

    with faults.rule(**rule) as name:
        yield name


def call_with_tensors(me: Any, rule: dict[str, Any]) -> dict[str, list[float]]:
    """Send a tensor and get it back; return the answer and the tensor that was sent."""
    import torch
    from torch.distributed import rpc

    own = torch.arange(1.0, 5.0)
    with fault(rule):
        result = rpc.rpc_sync(f"worker{1 - me.index}", torch.mul, args=(own, 1))
    return {"result": result.tolist(), "own": own.tolist()}


def add_two(me: Any, rule: dict[str, Any]) -> list[float]:
    import torch
    from torch.distributed import rpc

    both = (torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([0.0, 5.0, 0.0, 0.0]))
    with fault(rule):
        summed = rpc.rpc_sync(f"worker{1 - me.index}", torch.add, args=both)
    values: list[float] = summed.tolist()[:2]
    return values


def call_without_tensors(me: Any, rule: dict[str, Any]) -> tuple[str, int]:
    from torch.distributed import rpc

    import rpc_backends_faults as faults

    with fault(rule) as name:
        result = rpc.rpc_sync(f"worker{1 - me.index}", fault_steps.do, args=("no tensors",))
        return result, faults.counts()[name]


def corrupted_bytes(me: Any, rule: dict[str, Any]) -> str:
    """Send zeros; return the bits that arrive back."""
    import torch
    from torch.distributed import rpc

    with fault(rule):
        zeros = torch.zeros(64, dtype=torch.uint8)
        back = rpc.rpc_sync(f"worker{1 - me.index}", torch.bitwise_or, args=(zeros, 0))
    return "".join(f"{value:08b}" for value in back.tolist())


def begin(me: Any) -> None:
    """Send the message on which the rule acts."""
    from torch.distributed import rpc

    rpc.rpc_sync(f"worker{1 - me.index}", fault_steps.do, args=("begin",))


def allocate_under_pressure(me: Any, rule: dict[str, Any]) -> dict[str, str]:
    import resource

    import torch

    def allocate() -> str:
        try:
            return "allocated" if torch.ones(2**28, dtype=torch.uint8)[-1] else ""
        except RuntimeError as error:
            return str(error)

    before = resource.getrlimit(resource.RLIMIT_AS)
    with fault(rule):
        begin(me)
        during = allocate()
        while resource.getrlimit(resource.RLIMIT_AS) != before:
            me_waits()
    return {"during": during, "after": allocate()}


def me_waits() -> None:
    import time

    time.sleep(0.05)


def ask_store(me: Any, rule: dict[str, Any], times: int) -> float:
    """Return how many seconds requests to a store take after the fault has begun."""
    import time

    from torch.distributed import HashStore

    store = HashStore()
    with fault(rule):
        before = time.monotonic()
        begin(me)
        for number in range(times):
            store.set(f"key{number}", "value")
        return time.monotonic() - before


def read_clocks(me: Any, rule: dict[str, Any]) -> dict[str, float]:
    """Return by how many seconds each clock has moved."""
    import calendar
    import datetime
    import time
    from time import time as imported

    def clocks() -> dict[str, float]:
        return {
            "time": time.time(),
            "imported": imported(),
            "datetime": datetime.datetime.now(datetime.UTC).timestamp(),
            "localtime": float(calendar.timegm(time.localtime())),
            "monotonic": time.monotonic(),
        }

    before = clocks()
    with fault(rule):
        begin(me)
    return {name: value - before[name] for name, value in clocks().items()}
