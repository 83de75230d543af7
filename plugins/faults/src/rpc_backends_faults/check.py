"""The section on fault injection in ``rpc-backends doctor``."""

from __future__ import annotations

import os
from pathlib import Path

from rpc_backends_cli import Finding, Section
from rpc_backends_faults import files, replay, report_page, settings

#: The most logs that are named.
_MOST_NAMED = 10


def check() -> Section:
    """Check the environment variables, and the rule file and event logs that they name."""
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
        for place in dict.fromkeys(path for path in (asked.log, asked.replay) if path is not None):
            findings += _logs(place)
    except ValueError as error:
        findings.append(Finding("problem", "rules", str(error), {}))
    if not findings:
        findings.append(Finding("ok", settings.RULES, "is not set: fault injection is off"))
    return Section("faults", "Fault injection", findings)


def _logs(place: Path) -> list[Finding]:
    """Report event logs that are cut off: they lack faults, and so does a replay of them."""
    logs = report_page.log_files(place) if place.exists() else []
    problems = []
    for log in logs:
        try:
            problem = report_page.cut_off(log)
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        if problem is not None:
            problems.append((log, problem))
    findings = [
        Finding("warning", "event log", f"{log} {problem}", {"log": str(log)})
        for log, problem in problems[:_MOST_NAMED]
    ]
    if len(problems) > _MOST_NAMED:
        more = len(problems) - _MOST_NAMED
        findings.append(Finding("warning", "event log", f"{more} more in {place} are cut off", {}))
    if logs and not problems:
        many = "1 log" if len(logs) == 1 else f"{len(logs)} logs"
        findings.append(Finding("ok", "event logs", f"{many} in {place}, complete", {}))
    return findings
