"""Environment variables and recordings that are not valid."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_faults import replay, settings
from rpc_backends_faults.rules import RuleError


@pytest.mark.parametrize("value", ["1", "true", "yes", "ON", "0", "off", "no", "False"])
def test_a_switch_is_not_a_rule_file(value: str) -> None:
    with pytest.raises(RuleError) as caught:
        settings.read({"RPC_BACKENDS_FAULTS": value})

    assert f"RPC_BACKENDS_FAULTS={value!r} must be 'on' or the path of a rule file" in str(
        caught.value
    )


def test_a_path_may_look_like_a_switch() -> None:
    assert settings.read({"RPC_BACKENDS_FAULTS": "./1"}).rules == Path("1")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RPC_BACKENDS_FAULTS_LOGS", "Did you mean RPC_BACKENDS_FAULTS_LOG?"),
        ("RPC_BACKENDS_FAULTS_REPALY", "Did you mean RPC_BACKENDS_FAULTS_REPLAY?"),
        (
            "RPC_BACKENDS_FAULTS_WHATEVER",
            "The variables are: RPC_BACKENDS_FAULTS, RPC_BACKENDS_FAULTS_SEED",
        ),
    ],
)
def test_an_unknown_variable_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(RuleError) as caught:
        settings.read({name: "logs"})

    assert f"{name} is not a variable of fault injection" in str(caught.value)
    assert hint in str(caught.value)


def test_an_empty_unknown_variable_is_ignored() -> None:
    assert not settings.read({"RPC_BACKENDS_FAULTS_LOGS": ""}).on


@pytest.mark.parametrize("seed", ["x", "-1", "9" * 5000, str(2**63)])
def test_an_invalid_seed_is_refused_with_the_variable(seed: str) -> None:
    with pytest.raises(RuleError, match=r"RPC_BACKENDS_FAULTS_SEED=.* is not a valid seed"):
        settings.read({"RPC_BACKENDS_FAULTS_SEED": seed})


def test_a_home_that_does_not_exist_is_refused_with_the_variable() -> None:
    with pytest.raises(RuleError, match="RPC_BACKENDS_FAULTS_LOG="):
        settings.read({"RPC_BACKENDS_FAULTS_LOG": "~nobody-of-this-name/logs"})


# --- recordings -----------------------------------------------------------------------------------

RULE = {"name": "a", "what": "fail", "messages": ["PYTHON_CALL"], "probability": 0.5}
START: dict[str, Any] = {"t": 10.0, "event": "start", "seed": 1, "rules": [RULE]}
REQUEST: dict[str, Any] = {
    "t": 12.5,
    "event": "request",
    "id": 1,
    "to": "w",
    "type": "PYTHON_CALL",
    "digest": "00ff",
    "nth": 1,
    "faults": [{"rule": "a", "what": "fail", "seconds": 0.0}],
}


def write_log(path: Path, *events: Any) -> Path:
    """Write a log whose last line is complete."""
    lines = [json.dumps(event) if isinstance(event, dict) else event for event in events]
    path.write_text("\n".join([*lines, '{"event": "end of log"}']) + "\n")
    return path


def test_a_valid_recording_is_read(tmp_path: Path) -> None:
    recording = replay.read(write_log(tmp_path / "log.jsonl", START, REQUEST))

    assert recording.seed == 1
    assert recording.rules == [RULE]
    assert recording.entries == [("w", "PYTHON_CALL", "", 255, 1, 2.5, [(0, 0.0)], [])]


def without(event: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != key}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([without(START, "seed")], "log.jsonl:1: 'seed' is missing"),
        ([START | {"seed": "x"}], "log.jsonl:1: 'seed' is 'x'"),
        ([START | {"seed": 2**70}], "log.jsonl:1: 'seed' is 1180591620717411303424"),
        ([without(START, "rules")], "log.jsonl:1: 'rules' is missing"),
        ([START | {"rules": [3]}], "log.jsonl:1: 'rules' has 3"),
        ([START | {"rules": [without(RULE, "name")]}], "log.jsonl:1: a rule has no 'name'"),
        ([START | {"rules": [RULE | {"what": "dorp"}]}], "log.jsonl:1: the rule 'a' has 'what'"),
        ([START | {"rules": [RULE | {"what": ["drop"]}]}], "log.jsonl:1: the rule 'a' has 'what'"),
        (
            [START | {"rules": [RULE | {"copies": 10**9}]}],
            "log.jsonl:1: the rule 'a' has 'copies' = 1000000000",
        ),
        (
            [START | {"rules": [RULE | {"bound": 1e10}]}],
            "log.jsonl:1: the rule 'a' has 'bound' = 10000000000.0",
        ),
        ([START | {"rules": [RULE | {"text": 3}]}], "log.jsonl:1: the rule 'a' has 'text' = 3"),
        ([START | {"rules": [RULE | {"wat": 3}]}], "log.jsonl:1: the rule 'a' has 'wat' = 3"),
        ([START, without(REQUEST, "digest")], "log.jsonl:2: 'digest' is missing"),
        ([START, REQUEST | {"digest": "xyz"}], "log.jsonl:2: 'digest' is 'xyz'"),
        ([START, REQUEST | {"nth": -1}], "log.jsonl:2: 'nth' is -1"),
        ([START, REQUEST | {"id": [1]}], "log.jsonl:2: 'id' is [1]"),
        ([START, REQUEST | {"to": 3}], "log.jsonl:2: 'to' is 3"),
        ([START, REQUEST | {"faults": [{"rule": "a"}]}], "log.jsonl:2: a fault"),
        (
            [START, REQUEST | {"faults": [{"rule": "a", "seconds": 1e10}]}],
            "log.jsonl:2: a fault",
        ),
        (
            [START, REQUEST | {"faults": [{"rule": "b", "seconds": 1}]}],
            "log.jsonl:2: a fault names the rule 'b', which is not in the log",
        ),
        (["[" * 100_000], "log.jsonl:1: this is not a line of an event log"),
        ([f'{{"event": {"9" * 5000}}}'], "log.jsonl:1: this is not a line of an event log"),
    ],
)
def test_an_invalid_recording_is_refused(tmp_path: Path, events: list[Any], said: str) -> None:
    with pytest.raises(RuleError) as caught:
        replay.read(write_log(tmp_path / "log.jsonl", *events))

    assert said in str(caught.value)


def test_a_recording_that_is_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")

    with pytest.raises(RuleError, match=r"log\.jsonl is not a regular file"):
        replay.read(tmp_path / "log.jsonl")
