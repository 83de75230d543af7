"""Mutants of valid and of malicious messages are refused, or do what the policy permits."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guard_attacks
import pytest
from test_attacks import POLICY

from rpc_backends_guard.audit import Audit
from rpc_backends_guard.calls import Decisions
from rpc_backends_guard.guarding import unpickler
from rpc_backends_guard.policy import read
from rpc_backends_guard.unpickling import GuardError

#: How many mutants a run makes.
MUTANTS = 20_000


@pytest.fixture
def unpickled(tmp_path: Path) -> Callable[[bytes], Any]:
    """Return what unpickles the calls of worker1 as a worker with the policy of the attacks does."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    decisions = Decisions(read(file), "worker0", Audit(None, "worker0"), is_partial=False)

    def admit(data: bytes) -> tuple[bool, str]:
        return decisions.native.is_decided_call("worker1", data), "worker1"

    make = unpickler(decisions, enforces=True, admit=admit)
    return lambda data: make(io.BytesIO(data)).load()


def mutant(choose: random.Random, messages: list[bytes]) -> bytes:
    """Return a message with some bytes changed, left out, or taken from another message."""
    data = bytearray(choose.choice(messages))
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(2, max(3, len(data)))
        kind = choose.randrange(3)
        if kind == 0 and at < len(data):
            data[at] = choose.randrange(256)
        elif kind == 1:
            del data[at : at + choose.randint(1, 8)]
        else:
            message = choose.choice(messages)
            start = choose.randrange(len(message))
            data[at:at] = message[start : start + choose.randint(1, 60)]
    return bytes(data)


def test_no_mutant_runs_anything_that_is_not_listed(
    unpickled: Callable[[bytes], Any], tmp_path: Path
) -> None:
    """The seed is fixed, so a failure can be repeated."""
    folder = tmp_path / "traces"
    folder.mkdir()
    small = {name: data for name, data in guard_attacks.harmful().items() if len(data) < 2000}
    messages = [*guard_attacks.attacks(str(folder)).values(), *small.values()]
    messages = [data for data in messages if data]
    choose = random.Random(33)  # no secret
    permitted = {guard_attacks.listed, guard_attacks.raise_unlisted, guard_attacks.Counter}
    passed = 0
    for _ in range(MUTANTS):
        data = mutant(choose, messages)
        try:
            call = unpickled(data)
        except GuardError:
            continue
        passed += 1
        assert call.func in permitted or type(call.func).__module__ == "rpc_backends_guard.calls", (
            data
        )
    assert list(folder.iterdir()) == []
    assert passed < MUTANTS
