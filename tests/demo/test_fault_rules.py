"""The plan's faults are written as a rule file, and the effects of its rules are counted."""

from __future__ import annotations

import tomllib

from demo.fault_rules import Fired, text
from demo.plan import FAULTS, Plan


def test_each_faulty_message_type_has_a_rule() -> None:
    plan = Plan("ZEROMQ", "run", "data", seed=7, faults=FAULTS["ZEROMQ"])

    written = tomllib.loads(text(plan))

    assert written["seed"] == 7
    assert {(rule["what"], rule["message"]) for rule in written["rule"]} == {
        *(("fail", kind) for kind in plan.faults.messages_to_fail),
        *(("delay", kind) for kind in plan.faults.messages_to_delay),
    }
    failing = [rule for rule in written["rule"] if rule["what"] == "fail"]
    assert {(rule["first"], rule["per"]) for rule in failing} == {(2, "payload")}


def test_a_plan_without_faults_has_no_rules() -> None:
    assert tomllib.loads(text(Plan("TENSORPIPE", "run", "data"))) == {"seed": 0}


def test_effects_are_counted_since_the_last_call() -> None:
    metrics = {
        "agent.num_pending_requests": "3",
        "faults.held": "1",
        "faults.fail-PYTHON_CALL": "5",  # the total; the entries below are by message type and receiver
        "faults.fail-PYTHON_CALL.PYTHON_CALL.parameter-server": "4",
        "faults.fail-PYTHON_CALL.PYTHON_CALL.trainer.1": "1",
        "faults.delay-RREF.PYTHON_REMOTE_CALL.parameter-server": "2",
    }
    fired = Fired(lambda: metrics)

    assert fired.take() == ({"PYTHON_CALL": 5}, {"PYTHON_REMOTE_CALL": 2})
    metrics["faults.fail-PYTHON_CALL.PYTHON_CALL.trainer.1"] = "4"
    assert fired.take() == ({"PYTHON_CALL": 3}, {})
    assert fired.take() == ({}, {})
