"""Makes docs/backends.md from the conformance reports in docs/reports, if run as a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rpc_backends_core.spi import Capability
from rpc_backends_testing import badge
from rpc_backends_testing.results import Outcome, Report, Result

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "backends.md"
REPORTS = DOCS / "reports"

_HEAD = """\
# Backends that were tested

Each backend on this page has a published report of the [conformance suite](how-to/conformance.md).
The page is made of the reports in `docs/reports`.
[Add a backend](#add-a-backend) says how yours gets here.

| backend | package | verdict | torch | Python | accelerators | tested on |
|---|---|---|---|---|---|---|
"""
_CAPABILITIES = """
## Capabilities

*kept*: declared, and all tests of it passed.
*kept in part*: declared, some of its tests passed, and the others could not run, for example because the machine has no accelerator.
*not tested*: declared, and no test of it could run.
*works*: not declared, and the tests passed.
[Capabilities](reference/capabilities.md) says what each capability promises.

"""
_REPORTS = """
## Reports

A report names each requirement, its outcome, and the machine.
Beside it is the backend's badge.

"""
_ADD = """
## Add a backend

In a clone of this project, install your package and run the suite on your backend.
`--report` writes the report as JSON and as a page, and `--badge` writes a badge for your README:

```console
$ rpc-backends conformance MY_BACKEND --report docs/reports/MY_BACKEND --badge docs/reports/MY_BACKEND.svg
$ python docs/_ext/backend_index.py
```

The second command removes tracebacks from the report and writes this page.
Open a pull request with the page, `MY_BACKEND.json` and `MY_BACKEND.svg`.
In the README of your package, show the badge with a link to this page:

```markdown
[![rpc-backends conformance](conformance.svg)](URL-OF-THIS-PAGE)
```

`--badge FILE.json` writes the badge for [shields.io](https://shields.io/badges/endpoint-badge), which draws it from the URL of that file.
"""
#: What :func:`shorten` leaves out of a result, and a whole report has.
_EMPTY = {"advice": "", "capability": None, "has_stacks": False}
_WORDS = {
    "kept": "kept",
    "kept, tested in part": "kept in part",
    "broken": "broken",
    "declared, not tested": "not tested",
    "works, not declared": "works",
    "not declared": "",
}


def reports() -> list[Report]:
    """Return the published reports, by name of backend."""
    return sorted(map(read, REPORTS.glob("*.json")), key=lambda report: str(report.backend["name"]))


def read(file: Path) -> Report:
    """Return a report, whole or as :func:`shorten` has written it."""
    data = json.loads(file.read_text())
    return Report.from_json(
        {**data, "results": [{**_EMPTY, **result} for result in data["results"]]}
    )


def published(report: Report) -> Report:
    """Return a report without what only its author needs: tracebacks, which name files of a machine."""
    return replace(report, results=[_published(result) for result in report.results])


def _published(result: Result) -> Result:
    short = replace(result, advice="", detail="", seconds=round(result.seconds, 1))
    if result.outcome is Outcome.FAILED:
        return short
    return replace(short, call="", expected="", got="")


def shorten() -> None:
    """Replace each report in the folder by what is published of it: a line for each requirement."""
    for file in REPORTS.glob("*.json"):
        data = published(read(file)).to_json()
        results = [
            json.dumps(
                {name: value for name, value in result.items() if value != _EMPTY.get(name, "")}
            )
            for result in data.pop("results")
        ]
        head = json.dumps(data).removesuffix("}")
        text = f'{head}, "results": [\n' + ",\n".join(results) + "\n]}\n"
        file.write_text(text, encoding="utf-8")


def page(reports: Sequence[Report]) -> str:
    """Return the page of these reports."""
    rows = "".join(_row(report) for report in reports)
    names = [report.backend["name"] for report in reports]
    links = "".join(
        f"- {{download}}`{name} <reports/{name}.json>` ![{name}](reports/{name}.svg)\n"
        for name in names
    )
    return _HEAD + rows + _CAPABILITIES + _capabilities(reports) + _REPORTS + links + _ADD


def _row(report: Report) -> str:
    backend, machine = report.backend, report.machine
    name = backend["name"]
    cells = (
        f"`{name}`",
        f"{backend['distribution']} {backend['version']}",
        badge.message(report),
        machine["torch"],
        machine["python"],
        str(machine["accelerators"]),
        report.started[:10],
    )
    return _line(cells)


def _capabilities(reports: Sequence[Report]) -> str:
    states = [report.capabilities() for report in reports]
    lines = [_line(["capability", *(f"`{report.backend['name']}`" for report in reports)])]
    lines.append("|" + "---|" * (len(reports) + 1) + "\n")
    for name in Capability:
        cells = [_state(name, state) for state in states]
        lines.append(_line([f"`{name}`", *cells]))
    return "".join(lines)


def _state(name: str, states: dict[str, str]) -> str:
    return _WORDS[states[name]] if name in states else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    shorten()
    PAGE.write_text(page(reports()), encoding="utf-8")
