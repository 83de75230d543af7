"""Writes what reproduces a failure: a rule file, a pytest test, the output and a timeline."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from rpc_backends_faults import report_page
from rpc_backends_faults.explore.findings import Failure
from rpc_backends_faults.explore.plan import Plan
from rpc_backends_faults.explore.processes import backend_variables

_TEST = '''"""{title}"""

from pathlib import Path

from rpc_backends_faults.explore import problems

COMMAND = {command}  # run pytest in the folder in which it can be run
{variables}

def test_{name}(tmp_path):
    """{words}"""
    rules = Path(__file__).with_name("rules.toml")
    assert problems(COMMAND, rules, tmp_path{options}) == []
'''


def write(failure: Failure, plan: Plan) -> None:
    """Write the files that reproduce a failure to its folder."""
    folder = failure.folder
    (folder / "rules.toml").write_text(_rules(failure), encoding="utf-8")
    (folder / "test_failure.py").write_text(_test(failure, plan), encoding="utf-8")
    (folder / "detail.txt").write_text(failure.cause.detail + "\n", encoding="utf-8")
    logs = report_page.log_files(folder / "logs") if (folder / "logs").is_dir() else []
    if logs:
        try:
            page = report_page.story(logs).page()
        except ValueError:  # a process was killed before it had written a line
            page = ""
        if page:
            (folder / "timeline.html").write_text(page, encoding="utf-8")


def keep(failure: Failure, plan: Plan) -> None:
    """Add the rule file of a failure to the corpus, unless it passed each time that it was repeated."""
    if plan.corpus is None or not failure.shrunk.may_repeat():
        return
    plan.corpus.mkdir(parents=True, exist_ok=True)
    # Long causes differ after the part that a slug shows.
    digest = hashlib.sha256(failure.cause.key.encode()).hexdigest()[:8]
    name = f"{slug(failure.cause.key)}-{digest}.toml"
    (plan.corpus / name).write_text(_rules(failure), encoding="utf-8")


def _rules(failure: Failure) -> str:
    schedule = failure.shrunk.schedule
    sentences = [*schedule.words(), f"{failure.cause.title}; it {failure.shrunk.text()}."]
    if chosen := assignments(backend_variables()):
        sentences.append(f"The program ran with {chosen.strip()}.")
    return schedule.rule_file("\n".join(sentences))


def assignments(variables: Mapping[str, str]) -> str:
    """Return what sets variables in front of a shell command; nothing without variables."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())


def slug(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "failure"


def again(failure: Failure, plan: Plan) -> list[str]:
    """Return the shell commands that run a failure again.

    Each run gets an empty folder: a worker does not crash again if the log has its crash already.
    """
    rules = shlex.quote(str(failure.folder / "rules.toml"))
    return [
        f"run=$(mktemp -d); {assignments(backend_variables())}rpc-backends faults run "
        f'--rules {rules} --log "$run/logs" --left "$run/left" --free-port '
        f"{shlex.join(plan.program.command)}",
        f"pytest {shlex.quote(str(failure.folder / 'test_failure.py'))}",
    ]


def _test(failure: Failure, plan: Plan) -> str:
    options, variables = "", backend_variables()
    if variables:
        options += ", variables=VARIABLES"
    if plan.invariants_file is not None:
        options += f", invariants=Path({str(plan.invariants_file)!r})"
    if plan.accepted != (0,):
        options += f", accepted={plan.accepted!r}"
    options += f", hang={plan.program.hang:g}, timeout={plan.program.timeout:g}"
    return _TEST.format(
        title=_doc(failure.cause.title),
        command=list(plan.program.command),
        variables=f"VARIABLES = {variables!r}  # choose the backend\n" if variables else "",
        name=slug(failure.cause.key).replace("-", "_"),
        words=_doc(" ".join(failure.shrunk.schedule.words())),
        options=options,
    )


def _doc(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")


def relative(path: Path, base: Path) -> str:
    """Return a path relative to ``base`` if it lies there."""
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
