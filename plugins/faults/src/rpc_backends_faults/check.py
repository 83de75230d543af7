"""What ``rpc-backends doctor`` says of fault injection."""

from __future__ import annotations

import os

from rpc_backends_cli import Finding, Section
from rpc_backends_faults import files, replay, settings


def check() -> Section:
    """Look at the variables, and at the rule file that they name."""
    findings = []
    for name, meaning in settings.VARIABLES.items():
        value = os.environ.get(name, "").strip()
        if value:
            findings.append(Finding("note", name, f"{value!r}: {meaning}", {"value": value}))
    try:
        asked = settings.read()
        if asked.rules is not None:
            rules = files.read(asked.rules)
            findings.append(
                Finding(
                    "ok",
                    "rules",
                    f"{len(rules.rules)} in {asked.rules}; `rpc-backends faults check` explains them",
                    {"rules": [rule.name for rule in rules.rules]},
                )
            )
        if asked.replay is not None and not asked.replay.is_dir():
            replay.read(asked.replay)
    except ValueError as error:
        findings.append(Finding("problem", "rules", str(error), {}))
    if not findings:
        findings.append(Finding("ok", settings.RULES, "is not set: nothing stands before an agent"))
    return Section("faults", "Fault injection", findings)
