"""Writes a plan's faults as rules for rpc-backends-faults, and counts how often the rules fired.

The rules work with any backend, and an environment variable passes them to the workers. So this module
does not import rpc-backends-faults, and the training code is the same as without faults.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from demo.plan import CALL, TRAINERS, Plan

VARIABLE = "RPC_BACKENDS_FAULTS"  # also the prefix of the package's other variables
FILE = "rules.toml"

# Unlike FAULTY_TENSORPIPE's options, rules also match calls inside a distributed autograd context. The
# trainer retries only its barriers there, not the calls of layers: without the result of such a call, the
# context has no backward pass.
_REPEATED = {CALL: ("demo.parameter_server.meet", "demo.parameter_server.parameter_rrefs")}


def write(plan: Plan) -> Path:
    """Write the plan's rules to a file in its folder; return the path."""
    path = Path(plan.folder, FILE)
    path.write_text(text(plan), encoding="utf-8")
    return path


def text(plan: Plan) -> str:
    """Return the plan's faults as the text of a rule file."""
    rules: list[dict[str, object]] = []
    for kind in plan.faults.messages_to_fail:
        rule: dict[str, object] = {"name": f"fail-{kind}", "what": "fail", "message": kind}
        if kind in _REPEATED:
            rule["function"] = list(_REPEATED[kind])
        rules.append({**rule, "first": plan.faults.num_fail_sends, "per": "payload"})
    for kind, seconds in plan.faults.messages_to_delay.items():
        name = f"delay-{kind}"
        rules.append({"name": name, "what": "delay", "message": kind, "seconds": seconds})
    lines = [f"seed = {plan.seed}"]
    for rule in rules:
        lines += ["", "[[rule]]", f"sender = {json.dumps(TRAINERS)}"]
        # TOML and JSON write strings, numbers and lists of strings the same way.
        lines += [f"{key} = {json.dumps(value)}" for key, value in rule.items()]
    return "\n".join(lines) + "\n"


class Fired:
    """Counts how often this worker's rules have fired.

    :param metrics: returns the metrics of the worker's agent.
    """

    def __init__(self, metrics: Callable[[], Mapping[str, str]]) -> None:
        self._metrics = metrics
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the numbers of failures and delays since the last ``take``, by message type."""
        fired: Counter[tuple[str, str]] = Counter()
        for key, times in self._metrics().items():
            match key.split(".", 3):
                case ["faults", rule, kind, _]:  # faults.RULE.TYPE.RECEIVER
                    fired[rule.partition("-")[0], kind] += int(times)
        new, self._taken = fired - self._taken, fired
        failed, delayed = (
            {kind: times for (what, kind), times in new.items() if what == chosen}
            for chosen in ("fail", "delay")
        )
        return failed, delayed
