"""Which messages a rule matches, and when."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule

import rpc_backends_faults as faults
from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

FAILED = "RPCErr:2:Send attempt"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Three workers with fault injection enabled."""
    with tempfile.TemporaryDirectory() as folder, Workers(3, seconds=300) as group:
        group.run(fault_steps.join, f"file://{folder}/store", "TENSORPIPE")
        group.run(load)
        group.run(gather)
        yield group
        group.run(steps.leave)


# --- calls ----------------------------------------------------------------------------------------


class Holder:
    """A class with a method that RPC calls."""

    def method(self) -> str:
        return "method"

    @staticmethod
    def static() -> str:
        return "static"


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    """Return ``x + 1``, as a TorchScript function."""
    return x + 1


def call_python(to: str) -> Any:
    return rpc.rpc_sync(to, fault_steps.also_do, args=("python",))


def call_static(to: str) -> Any:
    return rpc.rpc_sync(to, Holder.static)


def call_method(to: str) -> Any:
    return created_object(to).rpc_sync().method()


def call_method_later(to: str) -> Any:
    return created_object(to).rpc_async().method().wait()


def remote_method(to: str) -> Any:
    return created(created_object(to).remote().method())


def call_module(to: str) -> Any:
    return RemoteModule(f"{to}/cpu", torch.nn.Linear, args=(2, 2)).forward(torch.ones(2))


def created_object(to: str) -> Any:
    held = rpc.remote(to, Holder)
    _REFERENCES.append(held)
    return held


def call_builtin(to: str) -> Any:
    return rpc.rpc_sync(to, torch.mul, args=(torch.ones(2), 3))


def call_scripted(to: str) -> Any:
    return rpc.rpc_sync(to, scripted, args=(torch.ones(2),))


def remote_python(to: str) -> Any:
    return created(rpc.remote(to, fault_steps.also_do, args=(torch.ones(3),)))


def remote_builtin(to: str) -> Any:
    return created(rpc.remote(to, torch.mul, args=(torch.ones(2), 3)))


def remote_scripted(to: str) -> Any:
    return created(rpc.remote(to, scripted, args=(torch.ones(2),)))


#: RRefs that must stay alive. Whenever an RRef cannot be created, torch marks the first such RRef of the
#: process: the handlers in ``RRef::handleError`` are static and keep the address of that RRef.
_REFERENCES: list[Any] = []


def created(held: Any) -> Any:
    """Return the value of an RRef; raise its error at once if it could not be created."""
    _REFERENCES.append(held)
    held._get_future().wait()
    return held.to_here()


def call_with_gradients(to: str) -> Any:
    with dist_autograd.context():
        return rpc.rpc_sync(to, fault_steps.also_do, args=(torch.ones(2, requires_grad=True),))


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
    me: WorkerContext, make_call: Callable[[str], Any], rule: dict[str, Any], to: str = "worker1"
) -> str:
    """Call a function while a rule is active; return "failed" if the rule made it fail, or "done"."""
    with faults.rule(**rule):
        try:
            make_call(to)
        except RuntimeError as error:
            return "failed" if FAILED in str(error) else str(error)
    return "done"


CALLS = {
    "PYTHON_CALL": (call_python, "*.fault_steps.also_do"),
    "SCRIPT_CALL": (call_builtin, "torch.ops.aten.mul"),
    "PYTHON_REMOTE_CALL": (remote_python, "*.fault_steps.also_do"),
    "SCRIPT_REMOTE_CALL": (remote_builtin, "torch.ops.aten.mul"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_rule_matches_type_and_function(workers: Workers, kind: str) -> None:
    make_call, function = CALLS[kind]

    def tried(**which: Any) -> str:
        said: str = workers[0].call(outcome, make_call, {"what": "fail", **which})
        return said

    assert tried(message=kind) == "failed"
    assert tried(message=kind, function=function) == "failed"
    assert tried(function=function) == "failed"
    assert tried(message=kind[:-3] + "*", function="*" + function[-2:]) == "failed"
    assert tried(message=kind, function=function + "x") == "done"
    assert tried(message=[other_kind for other_kind in CALLS if other_kind != kind]) == "done"


@pytest.mark.parametrize("make_call", [call_scripted, remote_scripted])
def test_torchscript_functions_match_by_qualified_name(workers: Workers, make_call: Any) -> None:
    rule = {"what": "fail", "function": "__torch__.*.scripted"}

    assert workers[0].call(outcome, make_call, rule) == "failed"
    assert (
        workers[0].call(outcome, make_call, {"what": "fail", "function": "__torch__.*.other"})
        == "done"
    )


def test_static_methods_match_by_qualified_name(workers: Workers) -> None:
    rule = {"what": "fail", "function": "*.test_matching.Holder.static"}

    assert workers[0].call(outcome, call_static, rule) == "failed"


@pytest.mark.parametrize(
    ("make_call", "function"),
    [
        (call_method, "*.test_matching.Holder.method"),
        (call_method_later, "*Holder.method"),
        (remote_method, "*.Holder.method"),
        (call_module, "torch.nn.modules.linear.Linear.forward"),
    ],
)
def test_methods_of_rrefs_and_modules_match_by_their_names(
    workers: Workers, make_call: Any, function: str
) -> None:
    assert workers[0].call(times_held, make_call, function) == 1
    assert workers[0].call(times_held, make_call, f"{function}s") == 0


def times_held(me: WorkerContext, make_call: Callable[[str], Any], function: str) -> int:
    """Call a method while a rule holds calls of a function for a moment; return how many it held."""
    # If such a call failed, torch's shutdown would wait for the RRef in it, which never arrived.
    with faults.rule(what="delay", seconds=0.001, name="method", function=function):
        make_call("worker1")
        return faults.counts()["method"]


@pytest.mark.parametrize(
    ("make_call", "kind", "function"),
    [
        (call_with_gradients, "PYTHON_CALL", "*.fault_steps.also_do"),
        (call_with_gradients_and_profiler, "PYTHON_CALL", "*.fault_steps.also_do"),
        (builtin_with_gradients, "SCRIPT_CALL", "torch.ops.aten.mul"),
        (backward, "BACKWARD_AUTOGRAD_REQ", None),
    ],
)
def test_wrapped_messages_match_by_the_message_inside(
    workers: Workers, make_call: Any, kind: str, function: str | None
) -> None:
    rule = {"what": "fail", "message": kind, **({"function": function} if function else {})}

    assert workers[0].call(outcome, make_call, rule) == "failed"
    assert workers[0].call(outcome, make_call, {"what": "fail", "message": "RREF_*"}) == "done"


def test_a_rule_matches_sender_and_receiver(workers: Workers) -> None:
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
def test_housekeeping_calls_match_only_on_request(workers: Workers) -> None:
    workers.run(fault_steps.add, {"what": "fail", "name": "all", "message": "PYTHON_CALL"})
    gathered = workers.run(gather)
    workers.run(fault_steps.remove, "all")
    workers.run(
        fault_steps.add,
        {"what": "fail", "name": "all", "message": "PYTHON_CALL", "housekeeping": True},
    )
    failures = workers.errors(gather, timeout=5)
    workers.run(fault_steps.remove, "all")

    assert gathered == [{"worker0": 0, "worker1": 1, "worker2": 2}] * 3
    assert any(FAILED in failure.text for failure in failures)


def load(me: WorkerContext) -> None:
    """Import this module, and with it the TorchScript function, before another worker calls it."""


def gather(me: WorkerContext, timeout: float = 60) -> Any:
    """Make the calls that torch makes at shutdown."""
    return rpc.api._all_gather(me.index, timeout=timeout)


# --- counts, times and marks ----------------------------------------------------------------------

OURS = {"what": "fail", "function": "*.fault_steps.do"}


def failed(workers: Workers, whats: list[Any], **rule: Any) -> list[bool]:
    """Make calls one after the other, and return which failed."""
    said = workers[0].call(fault_steps.several, "worker1", whats, ({**OURS, **rule},))
    return [text.startswith("RPCErr:2:Send attempt") for text in said]


def test_after_skips_the_first_messages(workers: Workers) -> None:
    assert failed(workers, [1, 2, 3, 4], after=2) == [False, False, True, True]


def test_every_selects_every_nth_message(workers: Workers) -> None:
    assert failed(workers, [1, 2, 3, 4, 5, 6], every=3) == [False, False, True] * 2


def test_first_limits_the_number_of_messages(workers: Workers) -> None:
    expected = [False, False, True, False, True, False, False]
    assert failed(workers, [1, 2, 3, 4, 5, 6, 7], after=1, every=2, first=2) == expected


def test_a_budget_limits_the_number_of_faults(workers: Workers) -> None:
    assert failed(workers, list("abcdefgh"), every=2, budget=2) == [False, True] * 2 + [False] * 4


def test_counts_can_be_per_payload(workers: Workers) -> None:
    expected = [True, True, False, True, False, True, False]
    assert failed(workers, ["a", "b", "a", "c", "b", "d", "d"], first=1, per="payload") == expected


def test_counts_can_be_per_receiver(workers: Workers) -> None:
    rule = {**OURS, "first": 1, "per": "pair"}

    assert workers[0].call(to_all, rule) == ["failed", "failed", "done", "done"]
    assert workers[0].call(to_all, {**rule, "per": "all"}) == ["failed", "done", "done", "done"]


def to_all(me: WorkerContext, rule: dict[str, Any]) -> list[str]:
    """Call two workers in turn, twice."""
    outcomes = []
    with faults.rule(**rule):
        for to in ("worker1", "worker2") * 2:
            try:
                rpc.rpc_sync(to, fault_steps.do, args=("x",))
                outcomes.append("done")
            except RuntimeError:
                outcomes.append("failed")
    return outcomes


def test_a_probability_is_kept_approximately(workers: Workers) -> None:
    count = sum(failed(workers, list(range(400)), probability=0.25))

    assert 60 < count < 140  # 100, plus or minus nearly five standard deviations


def test_a_rule_can_have_a_time_window(workers: Workers) -> None:
    # The group has existed for more than zero seconds and less than an hour.
    assert failed(workers, [1], start=3600) == [False]
    assert failed(workers, [1], end=3600) == [True]
    assert failed(workers, [1], end=1e-9) == [False]
    assert failed(workers, [1], start=1e-9, end=3600) == [True]


def test_a_rule_can_apply_only_inside_a_mark(workers: Workers) -> None:
    rule = {**OURS, "mark": "step-4?"}

    assert workers[0].call(through_marks, rule) == ["done", "failed", "failed", "failed", "done"]


def through_marks(me: WorkerContext, rule: dict[str, Any]) -> list[str]:
    """Call inside each of three nested marks, and again after leaving the innermost two."""
    outcomes = []

    def attempt() -> None:
        try:
            rpc.rpc_sync("worker1", fault_steps.do, args=("x",))
            outcomes.append("done")
        except RuntimeError:
            outcomes.append("failed")

    with faults.rule(**rule), faults.mark("step-4"):
        attempt()
        with faults.mark("step-40"):
            attempt()
            with faults.mark("step-40"):
                attempt()
            attempt()
        attempt()
    return outcomes


def test_held_messages_do_not_delay_each_other(workers: Workers) -> None:
    assert workers[0].call(start_many, 20) < 0.5 * 20


def start_many(me: WorkerContext, many: int) -> float:
    """Start calls that are held for half a second each; return the seconds that all took together."""
    with faults.rule(what="delay", seconds=0.5, function="*.fault_steps.do"):
        begin = time.monotonic()
        for held in [rpc.rpc_async("worker1", fault_steps.do, args=(n,)) for n in range(many)]:
            held.wait()
        return time.monotonic() - begin
