"""Functions and classes in messages: real ones if the policy lists them, and never stand-ins."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import guard_attacks
import pytest
import torch
from guard_attacks import INTERNAL, ME, call, made, name, text
from torch.distributed import rpc

from rpc_backends_guard import Policy, Rule, names
from rpc_backends_guard.audit import Audit
from rpc_backends_guard.calls import Decisions
from rpc_backends_guard.guarding import unpickler
from rpc_backends_guard.unpickling import GuardError

LISTED = name(ME, "listed")
CONFIG = name(ME, "Config")
REFERENCES = (f"{ME}:Config", f"{ME}:listed", "builtins:ValueError")


class Slotted:
    """A listed class whose objects have no `__dict__`."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any = None) -> None:
        self.kind = kind


class Holder:
    """A listed class whose objects have any attributes."""


def decide(*arguments: bytes, references: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Return the arguments of a call of a listed function."""
    return decisions(references).call(call(LISTED, *arguments), "worker1", {}).args


def decisions(references: tuple[str, ...] = ()) -> Decisions:
    """Return what decides under a policy with these references."""
    rule = Rule(("worker1",), functions=(f"{ME}:listed",), references=references)
    types = (f"{ME}:Config", f"{__name__}:Holder", f"{__name__}:Slotted")
    return Decisions(Policy((rule,), types=types), "worker0", Audit(None, ""), is_partial=False)


def sent(value: Any, references: tuple[str, ...] = ()) -> Any:
    """Return an argument of a call as it arrives."""
    udf = rpc.internal.PythonUDF(guard_attacks.listed, (value,), {})  # type: ignore[attr-defined]
    [arrived] = decisions(references).call(pickle.dumps(udf, 4), "worker1", {}).args
    return arrived


def holder(value: Any) -> Holder:
    """Return an object that holds a value."""
    held = Holder()
    vars(held)["value"] = value
    return held


VALUES: dict[str, Any] = {
    "an argument": guard_attacks.Config,
    "in a list": [guard_attacks.Config],
    "in a dict": {"c": guard_attacks.Config},
    "as a key": {guard_attacks.Config: 1},
    "in a tuple": (ValueError, guard_attacks.Config),
    "in a set": {guard_attacks.Config},
    "in a tuple in a list": [(guard_attacks.listed, 1)],
    "a function in a list": [guard_attacks.listed],
    "an exception": ValueError,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_references_lists_arrives_as_itself(value: Any) -> None:
    assert sent(value, REFERENCES) == value


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_references_does_not_list_is_refused(value: Any) -> None:
    with pytest.raises(GuardError, match="`references` does not list"):
        sent(value)


def test_attributes_of_objects_hold_what_references_lists() -> None:
    held = sent(holder([guard_attacks.Config]), REFERENCES)
    assert held.value == [guard_attacks.Config]


@pytest.mark.parametrize("kind", ["PythonUDF", "RemoteException"])
def test_classes_of_calls_are_never_arguments(kind: str) -> None:
    full = f"torch.distributed.rpc.internal:{kind}"
    assert hasattr(rpc.internal, kind)  # type: ignore[attr-defined]
    for opcode in (name(*full.split(":")), b"]" + name(*full.split(":")) + b"a"):
        with pytest.raises(GuardError, match="does not list"):
            decide(opcode, references=(full,))


BUILT: dict[str, Callable[[], bytes]] = {
    "an argument of a class": lambda: made(CONFIG, CONFIG),
    "in an argument of a class": lambda: made(CONFIG, b"]" + CONFIG + b"a"),
    "the class of an object": lambda: (
        made(name(__name__, "Holder")) + b"N}" + text("__class__") + CONFIG + b"s\x86b"
    ),
    "the class of an object without a dict": lambda: (
        made(name(__name__, "Slotted")) + b"N}" + text("__class__") + CONFIG + b"s\x86b"
    ),
    "a slot": lambda: made(name(__name__, "Slotted")) + b"N}" + text("kind") + CONFIG + b"s\x86b",
}


@pytest.mark.parametrize("opcode", BUILT.values(), ids=BUILT)
def test_nothing_that_stands_for_a_class_reaches_an_object(opcode: Callable[[], bytes]) -> None:
    with pytest.raises(GuardError) as caught:
        decide(opcode(), references=REFERENCES)
    assert "of which it makes" not in str(caught.value)


def test_an_error_of_a_listed_class_is_not_explained_by_another_name() -> None:
    wrong = made(CONFIG, b"K\x01", b"K\x01")
    with pytest.raises(GuardError, match="cannot be unpickled: TypeError"):
        decide(LISTED, wrong, references=REFERENCES)


@pytest.mark.parametrize("new", [b")\x81", b")R"])
def test_an_object_of_an_unlisted_class_is_refused_by_its_name(new: bytes) -> None:
    with pytest.raises(GuardError, match="'guard_attacks:Evil'"):
        decide(name(ME, "Evil") + new, LISTED, references=REFERENCES)


@pytest.mark.parametrize("value", [1, guard_attacks.listed])
def test_the_arguments_of_a_call_may_be_a_list(value: Any) -> None:
    """As in torch's tutorial on RNNs."""
    udf = rpc.internal.PythonUDF(guard_attacks.listed, [value], {})  # type: ignore[attr-defined]
    call = decisions((f"{ME}:listed",)).call(pickle.dumps(udf, 4), "worker1", {})
    assert list(call.args) == [value]


TENSOR = made(
    made(
        name("builtins", "getattr"), name(INTERNAL, "_InternalRPCPickler"), text("_tensor_receiver")
    ),
    b"K\x00",
)
#: Calls about which nothing is left to decide once their pickles were checked.
DECIDED = {
    "no arguments": call(LISTED),
    "a number": call(LISTED, b"K\x01"),
    "a keyword": call(LISTED, keywords=b"}" + text("value") + b"Ns"),
    "a tensor": call(LISTED, TENSOR),
    "a later protocol": call(LISTED).replace(b"\x80\x04", b"\x80\x05", 1),
}
UNDECIDED = {
    "an earlier protocol": call(LISTED).replace(b"\x80\x04", b"\x80\x02", 1),
    "no protocol": call(LISTED)[2:],
    "another function": call(name(ME, "raise_unlisted")),
    "an object": call(LISTED, made(CONFIG)),
    "a function as argument": call(LISTED, LISTED),
    "a class as argument": call(LISTED, CONFIG),
    "a keyword that is a number": call(LISTED, keywords=b"}K\x01Ns"),
    "keywords in a list": call(LISTED, keywords=b"]"),
    "a text for arguments": call(LISTED).replace(b"(t}", text("ab") + b"}"),
    "a result": b"\x80\x04N.",
}


@pytest.mark.parametrize("data", DECIDED.values(), ids=DECIDED)
def test_a_call_with_plain_arguments_is_decided_by_its_bytes(data: bytes) -> None:
    native = decisions().native
    assert native.is_decided_call("worker1", data)
    assert not native.is_decided_call("worker2", data)


@pytest.mark.parametrize("data", UNDECIDED.values(), ids=UNDECIDED)
def test_other_calls_are_not_decided_by_their_bytes(data: bytes) -> None:
    assert not decisions().native.is_decided_call("worker1", data)


@pytest.mark.parametrize("value", [guard_attacks.listed, [guard_attacks.listed]])
def test_a_listed_function_is_no_argument_of_its_own(value: Any) -> None:
    with pytest.raises(GuardError, match="`references` does not list 'guard_attacks:listed'"):
        sent(value)


def test_a_result_may_hold_classes_of_the_policy() -> None:
    data = pickle.dumps([guard_attacks.Config, ValueError])
    assert decisions().result(data, {}) == [guard_attacks.Config, ValueError]


def test_a_result_with_another_class_is_refused() -> None:
    with pytest.raises(GuardError, match="does not list 'guard_attacks:Evil'"):
        decisions().result(pickle.dumps([guard_attacks.Evil]), {})


def test_a_function_may_be_both_called_by_messages_and_while_they_are_unpickled() -> None:
    rule = Rule(("worker1",), functions=(f"{ME}:listed",), references=(f"{ME}:listed",))
    policy = Policy((rule,), types=(f"{ME}:listed",))
    decides = Decisions(policy, "worker0", Audit(None, ""), is_partial=False)
    # a slice is made by a call, so that the message is no plain one
    message = call(LISTED, made(name("builtins", "slice"), b"K\x01", b"K\x02"), LISTED)
    called = decides.call(message, "worker1", {})
    assert called.func is guard_attacks.listed
    assert called.args == (slice(1, 2), guard_attacks.listed)


def test_a_function_that_only_a_pickle_may_call_is_named() -> None:
    policy = Policy((Rule(("worker1",), functions=(f"{ME}:for_others",)),), types=(f"{ME}:listed",))
    decides = Decisions(policy, "worker0", Audit(None, ""), is_partial=False)
    with pytest.raises(GuardError, match=r"does not list 'guard_attacks:listed' in `functions`"):
        decides.call(call(LISTED), "worker1", {})


def test_the_hooks_of_a_parameter_are_not_a_dict_of_the_pickle() -> None:
    hooks: OrderedDict[int, Any] = OrderedDict()
    make = names.plain_types()["torch._utils:_rebuild_parameter"]
    parameter = make(torch.ones(1), True, hooks)
    hooks[0] = 5
    assert parameter._backward_hooks == {}


class Sent:
    """Stands for an RRef in a message."""

    def __reduce__(self) -> tuple[Any, ...]:
        receive = rpc.internal._InternalRPCPickler._py_rref_receiver  # type: ignore[attr-defined]
        return receive, ((0, 1, 0, 2, 1, "worker1", "Tensor"),)


@pytest.mark.parametrize("sender", ["worker1", None])
@pytest.mark.parametrize("is_partial", [False, True])
def test_an_rref_is_received_once(
    sender: str | None, is_partial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch counts its users; a policy that only warns lets a message pass after it has read it."""
    received: list[Any] = []

    def _py_rref_receiver(cls: type, data: Any) -> list[Any]:
        received.append(data)
        return received

    pickler = rpc.internal._InternalRPCPickler  # type: ignore[attr-defined]
    monkeypatch.setattr(pickler, "_py_rref_receiver", classmethod(_py_rref_receiver))
    policy = Policy((), enforces=False)
    decides = Decisions(policy, "worker0", Audit(None, ""), is_partial=is_partial)
    make = unpickler(decides, enforces=False, admit=lambda _data: (False, sender))
    udf = rpc.internal.PythonUDF(guard_attacks.listed, (Sent(),), {})  # type: ignore[attr-defined]
    passed = make(io.BytesIO(pickle.dumps(udf, 4))).load()
    assert passed.func is guard_attacks.listed
    assert passed.args == (received,)
    assert len(received) == 1
