"""The results of all pairs: a JSON file that runs add to, and the page that shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from packaging.version import Version

from matrix.pairs import ROOT

FILE = ROOT / "docs/compatibility.json"
PAGE = ROOT / "docs/compatibility.md"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one stage.

    :ivar status: ``passed`` or ``failed``.
    :ivar passed: how many tests passed; None if the stage has no tests.
    :ivar first_call: the seconds from the installation to the first call on ZEROMQ, if that was measured.
    :ivar commit: the short name of the commit that the stage was run on; None if that of the row.
    """

    status: str
    seconds: int
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    commit: str | None = None
    first_call: float | None = None

    def cell(self) -> str:
        """Return the text of the outcome in the table."""
        if self.status == "passed" and self.first_call is not None:
            return f"{self.first_call:.0f} s"
        if self.status == "passed":
            return "yes" if self.passed is None else str(self.passed)
        return "**failed**" if not self.failed else f"**{self.failed} failed**, {self.passed}"


@dataclass(frozen=True)
class Row:
    """The results of one pair.

    :ivar torch: with the build, for example ``2.9.1+cu128``.
    :ivar python: the minor version, for example ``3.12``.
    :ivar commit: the short name of the commit that the results hold for.
    :ivar date: the day of the run.
    :ivar missing: for each private name that this torch lacks, what is lost; None if none was looked for.
    """

    torch: str
    python: str
    commit: str
    date: str
    stages: Mapping[str, Outcome]
    missing: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Installation:
    """The result of the wheels alone with one pair, where no compiler is found.

    :ivar torch: as in :class:`Row`, and so are the other fields.
    """

    torch: str
    python: str
    commit: str
    date: str
    outcome: Outcome


_Entry = TypeVar("_Entry", Row, Installation)


def read() -> list[Row]:
    """Return the rows of the file; none if there is no file."""
    return [_row(pair) for pair in _data().get("pairs", [])]


def read_installations() -> list[Installation]:
    """Return the results of the wheels alone; none if there is no file."""
    return [
        Installation(**{**entry, "outcome": Outcome(**entry["outcome"])})
        for entry in _data().get("installations", [])
    ]


def of(torch: str, python: str) -> Row | None:
    """Return the row of a pair; None if there is none.

    :param torch: the version without the build, for example ``2.9.1``.
    """
    entries = (entry for entry in read() if _key(entry) == (torch, python))
    return next(entries, None)


def write(row: Row) -> None:
    """Put a row into the file, in place of an older one of the same pair, and write the page."""
    _write(_with(read(), row), read_installations())


def write_installation(installation: Installation) -> None:
    """Put the result of the wheels into the file, in place of an older one, and write the page."""
    _write(read(), _with(read_installations(), installation))


def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return data


def _write(rows: list[Row], installations: list[Installation]) -> None:
    data = {
        "version": 1,
        "pairs": [asdict(row) for row in rows],
        "installations": [asdict(installation) for installation in installations],
    }
    FILE.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(rows, installations))


def _with(entries: list[_Entry], entry: _Entry) -> list[_Entry]:
    others = [each for each in entries if _key(each) != _key(entry)]
    return sorted([*others, entry], key=lambda each: (Version(each.torch), Version(each.python)))


def _key(entry: Row | Installation) -> tuple[str, str]:
    return Version(entry.torch).public, entry.python


def page(rows: list[Row], installations: Sequence[Installation] = ()) -> str:
    """Return the page with the tables of the results."""
    from matrix.stages import STAGES, WHEELS

    stages = [stage for stage in STAGES if stage.name != WHEELS]
    titles = ["torch", "Python", *(stage.title for stage in stages), "commit", "tested on"]
    lines = [_row_of(titles), "|---" * len(titles) + "|"]
    for row in rows:
        cells = [
            row.stages[stage.name].cell() if stage.name in row.stages else "" for stage in stages
        ]
        lines.append(_row_of([row.torch, row.python, *cells, f"`{row.commit}`", row.date]))
    return _HEAD + "\n".join(lines) + "\n" + _FOOT + _installed(installations) + _names(rows)


def _installed(installations: Sequence[Installation]) -> str:
    """Return the section about the wheels: a row for each torch, a column for each Python."""
    if not installations:
        return ""
    pythons = sorted({entry.python for entry in installations}, key=Version)
    cells = {_key(entry): entry.outcome.cell() for entry in installations}
    titles = ["torch", *(f"Python {python}" for python in pythons), "commit"]
    lines = [_row_of(titles), "|---" * len(titles) + "|"]
    for torch in dict.fromkeys(torch for torch, _ in cells):
        commits = {entry.commit for entry in installations if _key(entry)[0] == torch}
        row = [cells.get((torch, python), "") for python in pythons]
        lines.append(_row_of([torch, *row, ", ".join(f"`{commit}`" for commit in sorted(commits))]))
    return _INSTALLED + "\n".join(lines) + "\n"


def _names(rows: list[Row]) -> str:
    """Return the section about the private names of torch."""
    looked = [row for row in rows if row.missing is not None]
    if not looked:
        return ""
    lacking = dict.fromkeys(
        f"- torch {Version(row.torch).public} has no `{name}`: {lost}."
        for row in looked
        for name, lost in (row.missing or {}).items()
    )
    versions = ", ".join(dict.fromkeys(Version(row.torch).public for row in looked))
    lines = [*lacking] or [f"All are in torch {versions}."]
    return _NAMES + "\n".join(lines) + "\n"


def _row(entry: Mapping[str, Any]) -> Row:
    stages = {name: Outcome(**outcome) for name, outcome in entry["stages"].items()}
    return Row(**{**entry, "stages": stages})


def _row_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


_HEAD = """\
# Versions that were tested

`make matrix` builds the wheels of every distribution, makes an environment for each pair of torch and Python, and runs the tests of each column in it.
It writes this page.
A number is the count of tests that passed.
The results of a row hold for its commit: a column was tested on that commit, or on an earlier one, and no file that it depends on has changed between them (`docs/compatibility.json` has the commit of each column).

"""
_FOOT = """
- **import**: all packages are imported, with warnings as errors.
- **doctor**: `rpc-backends doctor` reports no error.
- **torch's suites** are those of that version of torch.
  TENSORPIPE and FAULTY_TENSORPIPE run all of them; the other backends run those that need no TensorPipe.
- **TENSORPIPE** to **UCX**: the [conformance suite](how-to/conformance.md).

No machine of these runs had a GPU.
Builds of torch with CUDA were tested without one.
"""
_INSTALLED = """
## Wheels, without a compiler

`make test-wheels` makes an environment with torch for each pair, in which no compiler is found, and runs `pip install "rpc-backends[zeromq,ucx]"` with the wheels of the commit.
A number is the seconds from the start of pip to the answer of the first call on ZEROMQ.
Then the quickstart on TENSORPIPE, ZEROMQ and UCX, `doctor`, and a chapter of the conformance suite on each of them must succeed.
The machine did other work at the same time, mostly at lower priority.
Torch has wheels for Python 3.14 from 2.9 on; an empty cell was not tested.

"""
_NAMES = """
## Private names of torch

This project uses private names of torch.
`rpc-backends doctor` lists those that the installed torch lacks.

"""
