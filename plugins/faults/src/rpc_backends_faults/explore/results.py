"""Writes the findings: an HTML page, JSON, JUnit XML, and lines for a terminal."""

from __future__ import annotations

import html
import json
import re
import shlex
import time
from collections import Counter
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from rpc_backends_faults.explore import reproduce
from rpc_backends_faults.explore.findings import Failure, Findings
from rpc_backends_faults.explore.places import kinds_of
from rpc_backends_faults.explore.plan import Plan
from rpc_backends_faults.explore.schedules import LINKS

_INTERRUPTED = "The search was interrupted."
#: Characters that XML does not allow.
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd]")


def write(findings: Findings, plan: Plan) -> Path:
    """Write ``explore.json``, ``junit.xml`` and ``report.html``; return the page."""
    data = json.dumps(findings.data(), indent=2)
    (plan.out / "explore.json").write_text(data + "\n", encoding="utf-8")
    (plan.out / "junit.xml").write_text(junit(findings), encoding="utf-8")
    page = plan.out / "report.html"
    page.write_text(_page(findings, plan), encoding="utf-8")
    return page


def lines(findings: Findings, plan: Plan) -> list[str]:
    """Return the result for a terminal."""
    text = [
        f"{findings.runs} runs in {findings.seconds:.0f} s, {findings.explored} of them explored; "
        f"faults were injected at {findings.places.covered()} of {len(findings.places)} places"
    ]
    if findings.interrupted:
        text.append(_INTERRUPTED)
    for failure in findings.failures:
        text += [
            "",
            f"{failure.number}. {failure.cause.title}",
            f"   {failure.shrunk.text()}; found after {_runs(failure.after)}, {failure.seconds:.0f} s",
            *(f"   {words}" for words in failure.shrunk.schedule.words()),
            *([f"   {failure.against.text()}"] if failure.against else []),
            f"   {reproduce.relative(failure.folder / 'rules.toml', Path.cwd())}",
        ]
    if not findings.failures and not findings.error:
        text.append(_why_none(findings))
    return text + findings.all_notes()


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number} runs"


def junit(findings: Findings) -> str:
    """Return the findings as JUnit XML: a test case for the fault-free run and for each failure."""
    cases = [
        '  <testcase classname="faults.explore" name="without faults" '
        f'time="{findings.baseline_seconds}"/>'
    ]
    for failure in findings.failures:
        text = "\n".join(
            [
                *failure.shrunk.schedule.words(),
                failure.shrunk.text(),
                "",
                failure.shrunk.schedule.rule_file(),
                failure.cause.detail,
            ]
        )
        cases += [
            f'  <testcase classname="faults.explore" name={quoteattr(_xml(failure.cause.title))} '
            f'time="{failure.seconds}">',
            f"    <failure message={quoteattr(_xml(failure.cause.title))}>{escape(_xml(text))}</failure>",
            "  </testcase>",
        ]
    if findings.error:
        message = quoteattr(_xml(findings.error))
        cases += [
            '  <testcase classname="faults.explore" name="search">',
            f"    <error message={message}/>",
            "  </testcase>",
        ]
    many, errors = len(findings.failures), int(bool(findings.error))
    head = (
        f'<testsuite name="rpc-backends faults explore" tests="{many + errors + 1}" failures="{many}" '
        f'errors="{errors}" time="{findings.seconds}">'
    )
    properties = [
        f"    <property name={quoteattr(name)} value={quoteattr(_xml(value))}/>"
        for name, value in findings.environment.items()
    ]
    if properties:
        properties = ["  <properties>", *properties, "  </properties>"]
    start = '<?xml version="1.0" encoding="utf-8"?>'
    return "\n".join([start, head, *properties, *cases, "</testsuite>", ""])


def _xml(text: str) -> str:
    return _NO_XML.sub("?", text)


# --- the page


def _page(findings: Findings, plan: Plan) -> str:
    template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    parts = {
        "COMMAND": html.escape(
            reproduce.assignments(findings.environment) + shlex.join(findings.command)
        ),
        "SUMMARY": _summary(findings),
        "FAILURES": "\n".join(_failure(failure, plan) for failure in findings.failures)
        or f"<p>{html.escape(_why_none(findings))}</p>",
        "COVERAGE": _coverage(findings),
    }
    for name, text in parts.items():
        template = template.replace(f"<!--{name}-->", text)
    return template


def _why_none(findings: Findings) -> str:
    """Return why no failure is listed."""
    if findings.error:
        return f"Nothing was searched: {findings.error}"
    return "No run failed." if findings.explored else "No run with faults ended."


def _summary(findings: Findings) -> str:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(findings.started))
    places, covered = len(findings.places), findings.places.covered()
    figures = [
        ("failures", str(len(findings.failures))),
        ("places with faults", f"{covered} of {places}"),
        ("runs", str(findings.runs)),
        ("time", f"{findings.seconds:.0f} s"),
        ("seed", str(findings.seed)),
        ("started", started),
    ]
    cells = "".join(f"<div><b>{html.escape(value)}</b>{name}</div>" for name, value in figures)
    stopped = f"<p class=note>{_INTERRUPTED}</p>" if findings.interrupted else ""
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in findings.all_notes())
    return f"<div class=figures>{cells}</div>{stopped}{notes}"


def _failure(failure: Failure, plan: Plan) -> str:
    data = failure.data()
    words = "".join(f"<li>{html.escape(text)}</li>" for text in data["words"])
    against = f"; {failure.against.text()}" if failure.against else ""
    facts = (
        f"{failure.shrunk.text()}{against}; found after {_runs(failure.after)} ({failure.seconds:.0f} s) "
        f"by {failure.origin}; seen in {_runs(failure.times)}"
    )
    folder = reproduce.relative(failure.folder, plan.out)
    links = " · ".join(
        f'<a href="{html.escape(folder)}/{name}">{name}</a>'
        for name in ("rules.toml", "test_failure.py", "output.txt", "timeline.html", "detail.txt")
        if (failure.folder / name).exists()
    )
    timeline = "".join(
        f"<tr><td>{entry['seconds']:.3f} s</td><td>{html.escape(entry['text'])}</td></tr>"
        for entry in data["timeline"][:50]
    )
    again = html.escape("\n".join(reproduce.again(failure, plan)))
    return f"""<article>
<h3><span class="kind {failure.cause.kind.replace(" ", "-")}">{failure.cause.kind}</span>
{failure.number}. {html.escape(failure.cause.title)}</h3>
<p>{html.escape(facts)}</p>
<ul>{words}</ul>
<div class=two><div><h4>Rule file</h4><pre>{html.escape(data["rules"])}</pre></div>
<div><h4>Faults of the first run that failed</h4><table class=timeline>{timeline}</table></div></div>
<h4>Run it again</h4><pre>{again}</pre>
<details><summary>Details</summary><pre>{html.escape(data["detail"][-20000:])}</pre></details>
<p class=links>{links}</p>
</article>"""


def _coverage(findings: Findings) -> str:
    counts = findings.places.counts
    of_rules = {str(LINKS.get(kind, {"what": kind})["what"]) for kind in findings.kinds}
    kinds = sorted({*of_rules, *kinds_of(counts.values())})
    head = "".join(f"<th class=k><span>{kind}</span></th>" for kind in kinds)
    rows = []
    for place in findings.places:
        acted = counts.get(place, Counter[str]())
        cells = "".join(
            f"<td class=n>{acted[kind]}</td>" if acted.get(kind) else "<td class=n></td>"
            for kind in kinds
        )
        texts = (place.function or place.message, f"{place.sender} → {place.receiver}", place.phase)
        name = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
        rows.append(f"<tr{'' if acted else ' class=missed'}>{name}{cells}</tr>")
    return (
        "<table class=coverage><thead><tr><th>function or type</th><th>workers</th><th>phase</th>"
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
