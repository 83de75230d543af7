"""The results of a run, in memory and as a JSON file."""

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

#: Version of the file format; files of other versions are rejected.
FORMAT = 1
#: Prefix of the labels of baselines, also in the file.
BASELINE = "limit: "


class FormatError(Exception):
    """A file does not hold results of this command, or has another version of the format."""


@dataclass
class Series:
    """The values of one row, for one participant and one value of what the row depends on.

    :ivar points: a value for each round.
    :ivar samples: times of single calls of all rounds, in seconds; empty after :meth:`summarize`.
    :ivar percentiles: percentiles of the single calls, by percent.
    :ivar curve: the distribution of the single calls for plots: pairs of percent and seconds.
    :ivar calls: how many single calls there were.
    """

    points: list[Point] = field(default_factory=list)
    samples: array[float] = field(default_factory=lambda: array("d"))
    percentiles: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    calls: int = 0

    @property
    def values(self) -> list[float]:
        """The values of all rounds."""
        return [value for _, _, value in self.points]

    def summarize(self) -> None:
        """Replace the times of single calls by their distribution."""
        if self.samples:
            ordered = sorted(self.samples)
            self.calls = len(ordered)
            self.percentiles = statistics.percentiles(ordered)
            self.curve = statistics.curve(ordered)
            self.samples = array("d")


@dataclass(frozen=True)
class Problem:
    """A failure of a participant, which leaves a gap in the results.

    :ivar at: what was being measured.
    :ivar text: the error in one line.
    :ivar detail: tracebacks and output.
    """

    label: str
    at: str
    text: str
    detail: str = ""


#: A row's id, the value of what the row depends on (None for a single figure), and a label.
Key = tuple[str, int | None, str]


@dataclass
class Results:
    """All results of a run.

    :ivar plan: the plan, as JSON values.
    :ivar machine: facts about the machine, see :mod:`.machine`.
    :ivar subjects: what was measured, as JSON values, in the order of the report.
    :ivar reference: the label of the reference, with which the others are compared.
    :ivar series: the measured values.
    :ivar problems: the failures.
    :ivar complete: whether the run reached the end of the plan.
    """

    plan: dict[str, Any]
    machine: dict[str, Any]
    subjects: list[dict[str, Any]]
    reference: str
    series: dict[Key, Series] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    complete: bool = False
    _bootstraps: dict[Key, list[float]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def begin(
        cls, plan: Plan, machine: dict[str, Any], subjects: list[dict[str, Any]], reference: str
    ) -> Results:
        """Return empty results of a run that begins."""
        return cls(plan.to_json(), machine, subjects, reference)

    @property
    def labels(self) -> list[str]:
        """The labels of what was measured, the reference last."""
        return [subject["label"] for subject in self.subjects]

    def add(
        self,
        row: str,
        label: str,
        value: float,
        at: tuple[int, int],
        x: int | None = None,
        samples: Iterable[float] = (),
    ) -> None:
        """Add a value.

        :param row: the id of the row.
        :param at: the number of the process set, and that of the round.
        :param x: the value of what the row depends on.
        :param samples: times of single calls in seconds.
        """
        series = self.series.setdefault((row, x, label), Series())
        series.points.append((*at, value))
        self._bootstraps.clear()
        series.samples.extend(samples)

    def summarize(self) -> None:
        """Replace the times of single calls by their distributions, at the end of a run."""
        for series in self.series.values():
            series.summarize()

    def of(self, row: str, x: int | None, label: str) -> Series | None:
        """Return the values of a row for one label; None if there are none."""
        return self.series.get((row, x, label))

    def x_values(self, row: str) -> list[int | None]:
        """Return the values of x at which a row was measured, sorted; empty if it was not measured."""
        return sorted({x for of_row, x, _ in self.series if of_row == row}, key=lambda x: x or 0)

    def rows(self) -> Iterator[Row]:
        """Yield the rows that have values."""
        measured = {row for row, _, _ in self.series}
        return (row for row in ROWS if row.id in measured)

    def ratio(
        self, row: str, x: int | None, label: str, confidence: float = 0.95
    ) -> statistics.Ratio | None:
        """Return the ratio of a backend's median to the reference's; None if either is missing."""
        ours, reference = self.of(row, x, label), self.of(row, x, self.reference)
        if ours is None or reference is None:
            return None
        key = (row, x, label)
        if key not in self._bootstraps:
            self._bootstraps[key] = statistics.bootstrap_ratios(ours.points, reference.points)
        return statistics.ratio(ours.points, reference.points, confidence, self._bootstraps[key])

    # --- as JSON -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
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
            "problems": [asdict(problem) for problem in self.problems],
        }

    @classmethod
    def from_json(cls, data: Any) -> Results:
        """Return the results from the JSON values of :meth:`to_json`.

        :raises FormatError: ``data`` is something else.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            version = data.get("format") if isinstance(data, dict) else None
            raise FormatError(
                "the file holds no results of this version of `rpc-backends bench` "
                f"(format {version}, expected {FORMAT})"
            )
        try:
            series = {
                (row["id"], row["x"], label): Series(
                    points=[(int(s), int(r), float(v)) for s, r, v in result["points"]],
                    percentiles=result["percentiles"],
                    curve=[(float(percent), float(value)) for percent, value in result["curve"]],
                    calls=result["calls"],
                )
                for row in data["rows"]
                if row["id"] in BY_ID
                for label, result in row["results"].items()
            }
            return cls(
                plan=data["plan"],
                machine=data["machine"],
                subjects=data["subjects"],
                reference=data["reference"],
                series=series,
                problems=[Problem(**problem) for problem in data["problems"]],
                complete=data["complete"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"a field is missing or malformed: {error!r}") from error

    @classmethod
    def read(cls, file: Path) -> Results:
        """Return the results in a file.

        :raises FormatError: the file cannot be read, or holds something else.
        """
        try:
            return cls.from_json(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise FormatError(f"{file} cannot be read: {error}") from error
        except FormatError as error:
            raise FormatError(f"{file}: {error}") from error
