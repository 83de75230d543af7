"""Random decisions are SipHash-2-4 as the guide says, checked with a second implementation."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from torch.distributed import rpc

from support import steps
from support.siphash import siphash
from support.workers import WorkerContext, Workers

from . import fault_steps


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def test_the_hash_of_these_tests_matches_the_paper() -> None:
    assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5


def call_many(me: WorkerContext, many: int) -> None:
    """Make ten different calls, each several times. Some of them fail."""
    for count in range(many):
        with contextlib.suppress(RuntimeError):
            rpc.rpc_sync("worker1", fault_steps.do, args=(count % 10,))


def test_decisions_are_the_seeded_hash_of_rule_and_message(url: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'seed = 12345\n[[rule]]\nname = "some"\nwhat = "fail"\nfunction = "*.fault_steps.do"\n'
        "probability = 0.3\n"
    )
    env = {"RPC_BACKENDS_FAULTS": str(rules), "RPC_BACKENDS_FAULTS_LOG": str(tmp_path)}
    with Workers(2, env=env, seconds=180) as workers:
        workers.run(steps.join, url)
        workers[0].call(call_many, 100)
        workers.run(steps.leave)

    lines = [json.loads(line) for line in (tmp_path / "worker0.jsonl").read_text().splitlines()]
    calls = [event for event in lines if event.get("function", "").endswith(".fault_steps.do")]
    expected = [
        siphash(
            number(12345) + number(0),
            b"".join(map(text, ("some", "worker0", "worker1", "PYTHON_CALL")))
            + number(int(call["digest"], 16))
            + number(call["nth"]),
        )
        / 2**64
        < 0.3
        for call in calls
    ]
    assert ["faults" in call for call in calls] == expected
    assert len(calls) == 100
    assert 10 < sum(expected) < 50
    assert sorted({call["nth"] for call in calls}) == list(range(1, 11))
