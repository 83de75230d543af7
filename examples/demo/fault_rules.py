"""The faults of a plan as rules of rpc-backends-faults, and how often they fired.

Its rules stand before any backend and reach the workers through a variable, so that nothing of it is
imported here, and nothing of the training knows of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from demo.plan import CALL, TRAINERS, Plan

VARIABLE = "RPC_BACKENDS_FAULTS"  # and the beginning of its other variables
FILE = "rules.toml"

# Unlike the options of FAULTY_TENSORPIPE, rules see calls within a distributed autograd context too. Of
# those the trainer repeats meetings, but not calls of layers: a context that has lost one of these
# cannot go backward.
_REPEATED = {CALL: ("demo.parameter_server.meet", "demo.parameter_server.parameter_rrefs")}


def write(plan: Plan) -> Path:
    """Write the plan's rules into its folder; return the file."""
    path = Path(plan.folder, FILE)
    path.write_text(text(plan), encoding="utf-8")
    return path


def text(plan: Plan) -> str:
    """Return the plan's faults as a rule file."""
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
        # Texts, numbers and lists of texts are written in TOML as they are in JSON.
        lines += [f"{key} = {json.dumps(value)}" for key, value in rule.items()]
    return "\n".join(lines) + "\n"


class Fired:
    """How often this worker's rules have fired.

    :param metrics: returns the metrics of the worker's agent.
    """

    def __init__(self, metrics: Callable[[], Mapping[str, str]]) -> None:
        self._metrics = metrics
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the failures and the delays since the last ``take``, by message type."""
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
