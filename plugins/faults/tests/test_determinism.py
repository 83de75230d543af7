"""When a rule acts on a call: one test for each statement of docs/how-to/inject-faults.md."""

from __future__ import annotations

import functools
import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

SEED = "seed = 7\n"
NAMED = """
[[rule]]
name = "sometimes"
what = "fail"
text = "sometimes"
function = "*.fault_steps.do"
probability = 0.3
"""
UNNAMED = """
[[rule]]
what = "reply_fail"
text = "unnamed"
function = "*.fault_steps.do"
probability = 0.3
"""
OTHER_UNNAMED = """
[[rule]]
what = "reply_delay"
seconds = 0.001
function = "*.fault_steps.do"
probability = 0.5
"""
TENSORS = 24


def call_tensors(me: WorkerContext, threads: int) -> dict[int, list[str]]:
    """Make three calls with each tensor, from several threads; return the outcomes."""

    def attempt(number: int) -> tuple[int, list[str]]:
        ends = []
        for _ in range(3):
            try:
                rpc.rpc_sync(me.name, fault_steps.do, args=(torch.full((5,), float(number)),))
                ends.append("done")
            except RuntimeError as error:
                ends.append(str(error).rpartition(":")[2])
        return number, ends

    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(attempt, range(TENSORS)))


def ends_with(
    rules: str, threads: int = 4, *, log: Path | None = None, step: Any = call_tensors
) -> Any:
    """Run a program that makes calls, and return their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.toml"
        file.write_text(rules)
        env = {"RPC_BACKENDS_FAULTS": str(file)}
        if log is not None:
            env["RPC_BACKENDS_FAULTS_LOG"] = str(log)
        with Workers(1, env=env, seconds=120) as workers:
            workers.run(steps.join, f"file://{folder}/store", backend="TENSORPIPE")
            ends = workers[0].call(step, threads)
            workers.run(steps.leave)
    return ends


@functools.cache
def reference_outcomes() -> dict[int, list[str]]:
    """Return the outcome of each call with two rules, from one thread, without a log."""
    by_number: dict[int, list[str]] = ends_with(SEED + NAMED + UNNAMED, 1)
    ends = list(itertools.chain.from_iterable(by_number.values()))
    assert {"done", "sometimes", "unnamed"} == set(ends)  # each rule acts on some calls
    assert len({tuple(end) for end in by_number.values()}) > 3  # and outcomes depend on the tensor
    return by_number


def failures_by(rule: str, ends: dict[int, list[str]]) -> dict[int, list[bool]]:
    """Return, for each call, whether this rule made it fail."""
    return {number: [end == rule for end in outcomes] for number, outcomes in ends.items()}


def test_four_threads_fail_the_same_tensors_calls_as_one() -> None:
    assert ends_with(SEED + NAMED + UNNAMED, 4) == reference_outcomes()


def test_the_log_changes_no_decision(tmp_path: Path) -> None:
    # The rule becomes active after other calls, which only the log counts.
    rules = SEED + NAMED.replace("[[rule]]", '[[rule]]\nmark = "later"')

    assert ends_with(rules, 4, log=tmp_path / "log", step=call_later) == ends_with(
        rules, 4, step=call_later
    )


def test_an_added_rule_decides_the_same_with_a_log(tmp_path: Path) -> None:
    with_log = ends_with(SEED, 4, log=tmp_path / "log", step=call_before_and_after_a_rule)

    assert with_log == ends_with(SEED, 4, step=call_before_and_after_a_rule)


def test_an_unrelated_rule_changes_no_decision_of_an_added_rule() -> None:
    unrelated = '[[rule]]\nname = "unrelated"\nwhat = "delay"\nseconds = 0\n'

    assert ends_with(SEED + unrelated, step=call_before_and_after_a_rule) == ends_with(
        SEED, step=call_before_and_after_a_rule
    )


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_inserted_rule_changes_no_decision_of_unnamed_rules(place: str) -> None:
    rules = [NAMED, UNNAMED, OTHER_UNNAMED] if place == "after" else [OTHER_UNNAMED, NAMED, UNNAMED]

    assert ends_with(SEED + "".join(rules)) == reference_outcomes()


def test_a_rule_counts_messages_that_an_earlier_rule_fails() -> None:
    # The first rule fails every second call; the other rule decides as if it were alone.
    counting = '[[rule]]\nwhat = "fail"\ntext = "counted"\nfunction = "*.do"\nevery = 3\n'
    earlier = '[[rule]]\nwhat = "fail"\ntext = "earlier"\nfunction = "*.do"\nevery = 2\n'

    alone = failures_by("counted", ends_with(counting, 1))
    together = ends_with(earlier + counting, 1)

    for number, ends in together.items():
        for end, counted in zip(ends, alone[number], strict=True):
            assert end == "earlier" or (end == "counted") == counted


def test_identical_unnamed_rules_decide_independently() -> None:
    ends = ends_with(SEED + UNNAMED, 1)
    two = ends_with(SEED + UNNAMED + UNNAMED, 1)

    assert sum(failures_by("unnamed", two)[n].count(True) for n in two) > sum(
        failures_by("unnamed", ends)[n].count(True) for n in ends
    )


def test_counts_by_payload_distinguish_tensors() -> None:
    rule = '[[rule]]\nwhat = "fail"\ntext = "x"\nfunction = "*.do"\nfirst = 1\nper = "payload"\n'

    assert ends_with(rule, 4) == {n: ["x", "done", "done"] for n in range(TENSORS)}


def test_a_link_counts_requests_and_replies_separately() -> None:
    rule = '[[rule]]\nwhat = "partition"\nfunction = "*.do"\nevery = 2\n'

    # The second request is lost. Of the replies to the first and the third, the second is lost.
    assert ends_with(rule, step=call_one_after_the_other) == ["done", "lost", "lost", "lost"]


@pytest.mark.parametrize("kind", ["strided", "sparse", "conjugate"])
def test_tensors_of_any_layout_are_distinguished(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Workers(1, seconds=120) as workers:
        workers.run(fault_steps.join, f"file://{folder}/store", "TENSORPIPE")
        outcomes = workers[0].call(call_kinds, kind)
        workers.run(steps.leave)

    # The first call with each payload fails, and the second does not.
    assert outcomes == (["failed"] * 3, ["done"] * 3)


@pytest.mark.parametrize("kind", ["too small", "freed", "without"])
def test_the_contents_of_a_tensor_without_memory_are_not_read(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Workers(1, seconds=120) as workers:
        workers.run(fault_steps.join, f"file://{folder}/store", "TENSORPIPE")
        assert workers[0].call(call_without_memory, kind) == "chosen"
        workers.run(steps.leave)


# --- steps ----------------------------------------------------------------------------------------


def call_later(me: WorkerContext, threads: int) -> dict[int, list[str]]:
    """Make calls, then the same calls inside a mark."""
    import rpc_backends_faults as faults

    call_tensors(me, threads)
    with faults.mark("later"):
        return call_tensors(me, threads)


def call_before_and_after_a_rule(me: WorkerContext, threads: int) -> dict[int, list[str]]:
    """Make calls, then the same calls with an added rule."""
    import rpc_backends_faults as faults

    rule = {"what": "fail", "text": "added", "function": "*.fault_steps.do", "probability": 0.5}
    call_tensors(me, threads)
    with faults.rule(name="added", **rule):
        return call_tensors(me, threads)


def call_one_after_the_other(me: WorkerContext, threads: int) -> list[str]:
    """Make four calls, all of which but the first may be lost."""
    outcomes = []
    for number in range(4):
        timeout = 0.3 if number else 30  # the first also opens the connection
        try:
            rpc.rpc_sync(me.name, fault_steps.do, args=(number,), timeout=timeout)
            outcomes.append("done")
        except RuntimeError:
            outcomes.append("lost")
    return outcomes


def call_kinds(me: WorkerContext, kind: str) -> tuple[list[str], list[str]]:
    """Call twice with three different tensors of a kind; a rule fails the first call of each payload."""
    import rpc_backends_faults as faults

    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "strided": [base.T, base[:, 1], base[:, 2]],
        "sparse": [base.to_sparse(), (base + 1).to_sparse(), base.T.to_sparse()],
        "conjugate": [base + 1j, (base + 1j).conj(), (base + 1j).conj()[0]],
    }[kind]

    def attempt() -> list[str]:
        outcomes = []
        for tensor in tensors:
            try:
                rpc.rpc_sync(me.name, torch.neg, args=(tensor,))
                outcomes.append("done")
            except RuntimeError as error:
                outcomes.append("failed" if "chosen" in str(error) else str(error))
        return outcomes

    rule = {"what": "fail", "text": "chosen", "message": "SCRIPT_CALL", "first": 1}
    with faults.rule(per="payload", **rule):
        return attempt(), attempt()


def call_without_memory(me: WorkerContext, kind: str) -> str:
    """Call with a tensor whose memory is too small for its elements; a rule makes every call fail."""
    import rpc_backends_faults as faults

    tensor = torch.ones(2**24) if kind != "without" else torch._efficientzerotensor(2**24)
    if kind != "without":
        tensor.untyped_storage().resize_(64 if kind == "too small" else 0)
    rule = {"what": "fail", "text": "chosen", "message": "SCRIPT_CALL", "first": 1}
    with faults.rule(per="payload", **rule):
        try:
            rpc.rpc_sync(me.name, torch.neg, args=(tensor,))
        except RuntimeError as error:
            return str(error).rpartition(":")[2]
    return "done"
