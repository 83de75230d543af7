"""What a run has measured, as it is kept and written."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rpc_backends_bench import statistics
from rpc_backends_bench.plan import BY_ID, ROWS, Plan, Row
from rpc_backends_bench.statistics import Point

#: Version of the form of the file; another one is not read.
FORMAT = 1
#: Before the names of baselines, in files of results, too.
BASELINE = "limit: "


class FormatError(Exception):
    """A file is no result of this command, or one of another version."""


@dataclass
class Series:
    """One row of one participant, at one place of what the row depends on.

    :ivar points: a value for each round.
    :ivar samples: single calls of all rounds, in seconds, while the run lasts.
    :ivar percentiles: of them, by percent.
    :ivar curve: their distribution, to be drawn.
    """

    points: list[Point] = field(default_factory=list)
    samples: array[float] = field(default_factory=lambda: array("d"))
    percentiles: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    calls: int = 0

    @property
    def values(self) -> list[float]:
        """The values without their rounds."""
        return [value for _, _, value in self.points]

    def sum_up(self) -> None:
        """Replace the single calls by their distribution."""
        if self.samples:
            ordered = sorted(self.samples)
            self.calls = len(ordered)
            self.percentiles = statistics.percentiles(ordered)
            self.curve = statistics.curve(ordered)
            self.samples = array("d")


@dataclass(frozen=True)
class Problem:
    """Why something of a participant is missing.

    :ivar at: what was being measured.
    """

    label: str
    at: str
    text: str
    detail: str = ""


#: A row's id, what it depends on (None for a single figure), and whose it is.
Key = tuple[str, int | None, str]


@dataclass
class Results:
    """All of a run.

    :ivar subjects: what was measured, in the order in which it is shown, as values.
    :ivar reference: the label of what the others are compared with.
    :ivar complete: whether all of the plan was gone through.
    """

    plan: dict[str, Any]
    machine: dict[str, Any]
    subjects: list[dict[str, Any]]
    reference: str
    series: dict[Key, Series] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    complete: bool = False
    _draws: dict[Key, list[float]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def begin(
        cls, plan: Plan, machine: dict[str, Any], subjects: list[dict[str, Any]], reference: str
    ) -> Results:
        """Return results with nothing in them."""
        return cls(plan.to_json(), machine, subjects, reference)

    @property
    def labels(self) -> list[str]:
        """The backends, the reference last."""
        return [one["label"] for one in self.subjects]

    def add(
        self,
        row: str,
        label: str,
        value: float,
        at: tuple[int, int],
        x: int | None = None,
        samples: Iterable[float] = (),
    ) -> None:
        """Add what was measured with the process set and in the round ``at``."""
        series = self.series.setdefault((row, x, label), Series())
        series.points.append((*at, value))
        self._draws.clear()
        series.samples.extend(samples)

    def sum_up(self) -> None:
        """Replace single calls by their distributions; at the end of a run."""
        for series in self.series.values():
            series.sum_up()

    def of(self, row: str, x: int | None, label: str) -> Series | None:
        """Return what was measured, None if nothing was."""
        return self.series.get((row, x, label))

    def places(self, row: str) -> list[int | None]:
        """Return what a row was measured at, in order; empty if it was not."""
        return sorted({x for one, x, _ in self.series if one == row}, key=lambda x: x or 0)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of which there is something."""
        there = {row for row, _, _ in self.series}
        return (row for row in ROWS if row.id in there)

    def ratio(
        self, row: str, x: int | None, label: str, confidence: float = 0.95
    ) -> statistics.Ratio | None:
        """Return the ratio of a backend's median to that of the reference, None where there is none."""
        ours, reference = self.of(row, x, label), self.of(row, x, self.reference)
        if ours is None or reference is None:
            return None
        key = (row, x, label)
        if key not in self._draws:
            self._draws[key] = statistics.draws(ours.points, reference.points)
        return statistics.ratio(ours.points, reference.points, confidence, self._draws[key])

    # --- as JSON -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        rows: dict[tuple[str, int | None], dict[str, Any]] = {}
        for (row, x, label), series in self.series.items():
            about: dict[str, Any] = {"id": row, "x": x, "unit": BY_ID[row].unit, "results": {}}
            rows.setdefault((row, x), about)["results"][label] = {
                "median": statistics.spread(series.values).middle,
                "points": series.points,
                "percentiles": series.percentiles,
                "curve": series.curve,
                "calls": series.calls,
            }
        return {
            "format": FORMAT,
            "complete": self.complete,
            "machine": self.machine,
            "plan": self.plan,
            "subjects": self.subjects,
            "reference": self.reference,
            "rows": list(rows.values()),
            "problems": [asdict(one) for one in self.problems],
        }

    @classmethod
    def from_json(cls, data: Any) -> Results:
        """Return what :meth:`to_json` gave.

        :raises FormatError: it is something else.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else None
            raise FormatError(
                f"it is no result of `rpc-backends bench` (format {found}, not {FORMAT})"
            )
        try:
            series = {
                (row["id"], row["x"], label): Series(
                    points=[(int(s), int(r), float(v)) for s, r, v in one["points"]],
                    percentiles=one["percentiles"],
                    curve=[(float(percent), float(value)) for percent, value in one["curve"]],
                    calls=one["calls"],
                )
                for row in data["rows"]
                if row["id"] in BY_ID
                for label, one in row["results"].items()
            }
            return cls(
                plan=data["plan"],
                machine=data["machine"],
                subjects=data["subjects"],
                reference=data["reference"],
                series=series,
                problems=[Problem(**one) for one in data["problems"]],
                complete=data["complete"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"something is missing in it: {error!r}") from error

    @classmethod
    def read(cls, file: Path) -> Results:
        """Return the results in a file.

        :raises FormatError: it cannot be read, or is something else.
        """
        try:
            return cls.from_json(json.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise FormatError(f"{file} cannot be read: {error}") from error
        except FormatError as error:
            raise FormatError(f"{file}: {error}") from error
