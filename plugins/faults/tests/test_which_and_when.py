"""Which messages a rule is for, and when."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

import rpc_backends_faults as faults
from support import steps
from support.workers import WorkerContext, Workers

from . import acts

FAILED = "RPCErr:2:Send attempt"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Three workers whose agents are ready for rules."""
    with tempfile.TemporaryDirectory() as folder, Workers(3, seconds=300) as group:
        group.run(acts.join, f"file://{folder}/store", "TENSORPIPE")
        group.run(gather)  # imports this module everywhere, with its compiled function
        yield group
        group.run(steps.leave)


# --- what is called -------------------------------------------------------------------------------


class Holder:
    """Has a method that is called by RPC."""

    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    """Compiled."""
    return x + 1


def call_python(to: str) -> Any:
    return rpc.rpc_sync(to, acts.also_do, args=("python",))


def call_static(to: str) -> Any:
    return rpc.rpc_sync(to, Holder.static)


def call_builtin(to: str) -> Any:
    return rpc.rpc_sync(to, torch.mul, args=(torch.ones(2), 3))


def call_scripted(to: str) -> Any:
    return rpc.rpc_sync(to, scripted, args=(torch.ones(2),))


def remote_python(to: str) -> Any:
    return created(rpc.remote(to, acts.also_do, args=(torch.ones(3),)))


def remote_builtin(to: str) -> Any:
    return created(rpc.remote(to, torch.mul, args=(torch.ones(2), 3)))


def remote_scripted(to: str) -> Any:
    return created(rpc.remote(to, scripted, args=(torch.ones(2),)))


#: Torch marks the first RRef of a process that could not be created, whichever it is that could not
#: be (the handlers of ``RRef::handleError`` are static, and have its address). So it has to live on.
_REFERENCES: list[Any] = []


def created(held: Any) -> Any:
    """Return the value of an RRef; its error, at once, if it could not be created."""
    _REFERENCES.append(held)
    held._get_future().wait()
    return held.to_here()


def call_with_gradients(to: str) -> Any:
    with dist_autograd.context():
        return rpc.rpc_sync(to, acts.also_do, args=(torch.ones(2, requires_grad=True),))


def call_with_gradients_and_profiler(to: str) -> Any:
    with torch.autograd.profiler.profile():
        return call_with_gradients(to)


def builtin_with_gradients(to: str) -> Any:
    with dist_autograd.context():
        return rpc.rpc_sync(to, torch.mul, args=(torch.ones(2, requires_grad=True), 3))


def backward(to: str) -> Any:
    with dist_autograd.context() as context:
        x = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(to, torch.mul, args=(x, x)).sum()])


def outcome(
    me: WorkerContext, act: Callable[[str], Any], rule: dict[str, Any], to: str = "worker1"
) -> str:
    """Do something while a rule acts; say whether that failed by it."""
    with faults.rule(**rule):
        try:
            act(to)
        except RuntimeError as error:
            return "failed" if FAILED in str(error) else str(error)
    return "done"


ACTS = {
    "PYTHON_CALL": (call_python, "*.acts.also_do"),
    "SCRIPT_CALL": (call_builtin, "torch.ops.aten.mul"),
    "PYTHON_REMOTE_CALL": (remote_python, "*.acts.also_do"),
    "SCRIPT_REMOTE_CALL": (remote_builtin, "torch.ops.aten.mul"),
}


@pytest.mark.parametrize("kind", ACTS)
def test_a_rule_goes_by_type_and_function(workers: Workers, kind: str) -> None:
    act, function = ACTS[kind]

    def tried(**which: Any) -> str:
        said: str = workers[0].call(outcome, act, {"what": "fail", **which})
        return said

    assert tried(message=kind) == "failed"
    assert tried(message=kind, function=function) == "failed"
    assert tried(function=function) == "failed"
    assert tried(message=kind[:-3] + "*", function="*" + function[-2:]) == "failed"
    assert tried(message=kind, function=function + "x") == "done"
    assert tried(message=[one for one in ACTS if one != kind]) == "done"


@pytest.mark.parametrize("act", [call_scripted, remote_scripted])
def test_torchscript_functions_go_by_their_qualified_names(workers: Workers, act: Any) -> None:
    rule = {"what": "fail", "function": "__torch__.*.scripted"}

    assert workers[0].call(outcome, act, rule) == "failed"
    assert (
        workers[0].call(outcome, act, {"what": "fail", "function": "__torch__.*.other"}) == "done"
    )


def test_static_methods_go_by_their_qualified_names(workers: Workers) -> None:
    rule = {"what": "fail", "function": "*.test_which_and_when.Holder.static"}

    assert workers[0].call(outcome, call_static, rule) == "failed"


@pytest.mark.parametrize(
    ("act", "kind", "function"),
    [
        (call_with_gradients, "PYTHON_CALL", "*.acts.also_do"),
        (call_with_gradients_and_profiler, "PYTHON_CALL", "*.acts.also_do"),
        (builtin_with_gradients, "SCRIPT_CALL", "torch.ops.aten.mul"),
        (backward, "BACKWARD_AUTOGRAD_REQ", None),
    ],
)
def test_what_is_wrapped_for_autograd_and_profiling_goes_by_what_is_inside(
    workers: Workers, act: Any, kind: str, function: str | None
) -> None:
    rule = {"what": "fail", "message": kind, **({"function": function} if function else {})}

    assert workers[0].call(outcome, act, rule) == "failed"
    assert workers[0].call(outcome, act, {"what": "fail", "message": "RREF_*"}) == "done"


def test_a_rule_goes_by_sender_and_receiver(workers: Workers) -> None:
    def tried(index: int, to: str, **which: Any) -> str:
        said: str = workers[index].call(outcome, call_python, {"what": "fail", **which}, to)
        return said

    assert tried(0, "worker1", receiver="worker1") == "failed"
    assert tried(0, "worker2", receiver="worker1") == "done"
    assert tried(0, "worker2", receiver=["worker1", "*2"]) == "failed"
    assert tried(0, "worker1", sender="worker?") == "failed"
    assert tried(0, "worker1", sender=["worker1", "worker2"]) == "done"
    assert tried(1, "worker1", sender="worker1", receiver="worker1") == "failed"


@pytest.mark.slow
def test_the_calls_by_which_groups_start_and_stop_are_left_alone_unless_a_rule_wants_them(
    workers: Workers,
) -> None:
    workers.run(acts.add, {"what": "fail", "name": "all", "message": "PYTHON_CALL"})
    gathered = workers.run(gather)
    workers.run(acts.remove, "all")
    workers.run(
        acts.add, {"what": "fail", "name": "all", "message": "PYTHON_CALL", "housekeeping": True}
    )
    failures = workers.errors(gather)
    workers.run(acts.remove, "all")

    assert gathered == [{"worker0": 0, "worker1": 1, "worker2": 2}] * 3
    assert any(FAILED in failure.text for failure in failures)


def gather(me: WorkerContext) -> Any:
    """Do what torch does at shutdown."""
    return rpc.api._all_gather(me.index, timeout=5)


# --- when -----------------------------------------------------------------------------------------

OURS = {"what": "fail", "function": "*.acts.do"}


def failed(workers: Workers, whats: list[Any], **rule: Any) -> list[bool]:
    """Make calls one after the other, and return which failed."""
    said = workers[0].call(acts.several, "worker1", whats, ({**OURS, **rule},))
    return [text.startswith("RPCErr:2:Send attempt") for text in said]


def test_after_lets_some_pass_first(workers: Workers) -> None:
    assert failed(workers, [1, 2, 3, 4], after=2) == [False, False, True, True]


def test_every_takes_one_of_so_many(workers: Workers) -> None:
    assert failed(workers, [1, 2, 3, 4, 5, 6], every=3) == [False, False, True] * 2


def test_first_takes_the_first_of_those(workers: Workers) -> None:
    expected = [False, False, True, False, True, False, False]
    assert failed(workers, [1, 2, 3, 4, 5, 6, 7], after=1, every=2, first=2) == expected


def test_a_budget_is_spent_once(workers: Workers) -> None:
    assert failed(workers, list("abcdefgh"), every=2, budget=2) == [False, True] * 2 + [False] * 4


def test_counts_can_be_for_each_payload(workers: Workers) -> None:
    expected = [True, True, False, True, False, True, False]
    assert failed(workers, ["a", "b", "a", "c", "b", "d", "d"], first=1, per="payload") == expected


def test_counts_can_be_for_each_receiver(workers: Workers) -> None:
    rule = {**OURS, "first": 1, "per": "pair"}

    assert workers[0].call(to_all, rule) == ["failed", "failed", "done", "done"]
    assert workers[0].call(to_all, {**rule, "per": "all"}) == ["failed", "done", "done", "done"]


def to_all(me: WorkerContext, rule: dict[str, Any]) -> list[str]:
    """Call two workers in turn, twice."""
    found = []
    with faults.rule(**rule):
        for to in ("worker1", "worker2") * 2:
            try:
                rpc.rpc_sync(to, acts.do, args=("x",))
                found.append("done")
            except RuntimeError:
                found.append("failed")
    return found


def test_a_probability_is_about_kept(workers: Workers) -> None:
    count = sum(failed(workers, list(range(400)), probability=0.25))

    assert 60 < count < 140  # six standard deviations around 100


def test_a_rule_can_act_from_a_time_on_and_until_a_time(workers: Workers) -> None:
    # The group has been up for less than an hour, and more than no time.
    assert failed(workers, [1], start=3600) == [False]
    assert failed(workers, [1], end=3600) == [True]
    assert failed(workers, [1], end=1e-9) == [False]
    assert failed(workers, [1], start=1e-9, end=3600) == [True]


def test_a_rule_can_act_while_the_program_is_in_a_mark(workers: Workers) -> None:
    rule = {**OURS, "mark": "step-4?"}

    assert workers[0].call(through_marks, rule) == ["done", "failed", "failed", "failed", "done"]


def through_marks(me: WorkerContext, rule: dict[str, Any]) -> list[str]:
    """Call outside of marks, in others, in one that fits, in one within it, and outside again."""
    found = []

    def attempt() -> None:
        try:
            rpc.rpc_sync("worker1", acts.do, args=("x",))
            found.append("done")
        except RuntimeError:
            found.append("failed")

    with faults.rule(**rule), faults.mark("step-4"):
        attempt()
        with faults.mark("step-40"):
            attempt()
            with faults.mark("step-40"):
                attempt()
            attempt()
        attempt()
    return found


def test_messages_that_are_held_do_not_hold_up_each_other(workers: Workers) -> None:
    assert workers[0].call(start_many, 20) < 1.0 * 20


def start_many(me: WorkerContext, many: int) -> float:
    """Start calls that are held for a second each; return how long it took until all were known."""
    with faults.rule(what="delay", seconds=1.0, function="*.acts.do"):
        begin = time.monotonic()
        for held in [rpc.rpc_async("worker1", acts.do, args=(n,)) for n in range(many)]:
            held.wait()
        return time.monotonic() - begin
