"""Messages of the property-based tests: how they are made, and that the tests notice exchanged parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies

from rpc_backends_testing.comparison import difference
from rpc_backends_testing.messages import Message, Storage, View, contents, messages, sharing
from rpc_backends_testing.transports import properties
from rpc_backends_testing.transports.properties import holds_for
from support.command import Command

EXAMPLE = Path(__file__).parents[2] / "examples/sockets_backend/sockets_backend.py"
SABOTAGE = {
    "EXCHANGES_PARTS": "if len(parts[-1]) == len(parts[-2]): parts[-2:] = parts[:-3:-1]",
    "MERGES_PARTS": "parts[-2:] = [bytes(parts[-2]) + bytes(parts[-1])]",
}
BROKEN = """
class Broken(SocketTransport):
    def send(self, peer, parts, reply):
        parts = list(parts)
        if len(parts) > 2:
            {}
        super().send(peer, parts, reply)
"""


def test_a_message_is_built_alike_everywhere() -> None:
    def check(message: Message) -> None:
        first, second = message.build(), message.build()
        assert difference(first, second) is None
        assert sharing(first, message.keeps_sharing()) == message.sharing()

    holds_for(check, messages(), examples=50)


@pytest.mark.parametrize("size", [1, 8, 4096, 4097])
def test_storages_have_different_contents(size: int) -> None:
    distinct = {bytes(contents(Storage(size, "uint8", number)).numpy()) for number in range(100)}
    assert len(distinct) == 100


def test_separate_memory_is_not_taken_for_shared() -> None:
    views = [View(0, 0, (4,), (1,)), View(0, 2, (2,), (1,))]
    message = Message((Storage(4, "uint8", 0),), views)
    shared = message.build()
    separate = [tensor.clone() for tensor in shared]

    assert sharing(shared, [True, True]) == message.sharing() == [(0, 0), (0, 2)]
    assert sharing(separate, [True, True]) == [(0, 0), (1, 0)]


def test_small_views_may_be_copied() -> None:
    """Torch's own agent copies small views."""
    views = [View(0, 0, (8192,), (1,)), View(0, 0, (4096,), (1,)), View(0, 0, (4097,), (1,))]
    message = Message((Storage(8192, "uint8", 0),), views)
    assert message.keeps_sharing() == [True, False, True]


def test_a_failing_example_is_made_smaller() -> None:
    def check(number: int) -> None:
        assert number < 700, number

    with pytest.raises(AssertionError, match=r"^700"):
        holds_for(check, strategies.integers(0, 10**6), examples=100)


def test_making_smaller_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "SHRINKING", -1.0)
    tried: list[int] = []

    def check(number: int) -> None:
        tried.append(number)
        assert number < 700

    with pytest.raises(AssertionError):
        holds_for(check, strategies.integers(0, 10**6), examples=100)
    assert [number for number in tried if number >= 700] == tried[-1:]


@pytest.mark.slow
@pytest.mark.parametrize("name", SABOTAGE)
def test_exchanged_and_merged_parts_fail(tmp_path: Path, name: str) -> None:
    command = Command(tmp_path)
    source = EXAMPLE.read_text().replace("start_agent(SocketTransport()", "start_agent(Broken()")
    source = source.replace("class Options(", BROKEN.format(SABOTAGE[name]) + "\n\nclass Options(")
    command.install("rpc-backend-broken", {name: "BACKEND"}, source)
    chosen = ("--chapter", "data", "-k", "test_any_tensors_of_a_builtin")

    ended = command("conformance", name, *chosen, "--json")

    (result,) = ended.json["results"]
    assert result["outcome"] == "failed", ended.stdout
    # The smallest message that shows the fault: two tensors, each in a part of its own.
    assert result["call"].count("<uint8") == 2
