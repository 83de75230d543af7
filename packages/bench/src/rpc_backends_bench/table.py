"""Print the table of a run, and what changed since another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpc_backends_bench import formatting, machine
from rpc_backends_bench.compare import Change, Comparison
from rpc_backends_bench.disturbances import disturbances
from rpc_backends_bench.plan import BY_ID, Row
from rpc_backends_bench.results import BASELINE, Results
from rpc_backends_bench.statistics import spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STYLES = {"better": "green", "worse": "red", "": ""}
#: How many characters of a failure's text are printed.
_MAX_TEXT = 200
_UNLIMITED_WIDTH = 10_000


def render(results: Results, comparison: Comparison | None, to: Console) -> None:
    """Print what was measured; what needs attention comes last."""
    from rich.measure import Measurement
    from rich.text import Text

    table = _table(results, intervals=True)
    needed = Measurement.get(to, to.options.update(max_width=_UNLIMITED_WIDTH), table).maximum
    if not to.is_terminal:
        to.width = max(to.width, needed)  # a file can be scrolled
    fits = needed <= to.width
    to.print(table if fits else _table(results, intervals=False))
    intervals = (
        "The 95 % confidence interval is in parentheses."
        if fits
        else "A wider window and the HTML page show 95 % confidence intervals."
    )
    to.print(
        Text(
            f"Figures are medians. A ratio is the figure divided by that of {results.reference}: below 1 "
            f"is better, except for calls per second, where above 1 is better. {intervals}",
            "dim",
        )
    )
    to.print(Text(machine.summary(results.machine), "dim"))
    for text in disturbances(results):
        to.print(Text(text, "yellow"))
    if comparison is not None:
        _render_comparison(comparison, to)
    for problem in results.problems:
        to.print()
        text = problem.text.splitlines()[0] if problem.text else ""
        to.print(Text(f"{problem.label}, {problem.at}: {text[:_MAX_TEXT]}", "red"))
    if not results.complete:
        to.print()
        to.print(Text("Interrupted. These are the results so far.", "yellow"))


def _table(results: Results, *, intervals: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("MEASURED", no_wrap=True)
    for label in results.labels:
        table.add_column(label, justify="right", overflow="fold", min_width=8)
        if label != results.reference:
            table.add_column("RATIO", justify="right", no_wrap=True)
    section = ""
    for row in results.rows():
        if row.section != section:
            section = row.section
            table.add_section()
            table.add_row(section, style="bold")
        for x in formatting.shown_x_values(results, row):
            _add(table, results, row, x, intervals)
    return table


def _add(table: Table, results: Results, row: Row, x: int | None, intervals: bool) -> None:
    from rich.text import Text

    cells: list[str | Text] = []
    for label in results.labels:
        series = results.of(row.id, x, label)
        if series is None:
            cells.append(Text("error", "red") if _failed(results, label) else "")
        else:
            cells.append(formatting.figure(row, spread(series.values).middle))
        if label != results.reference:
            ratio = results.ratio(row.id, x, label)
            text = formatting.ratio(ratio, interval=intervals)
            cells.append(Text(text, _STYLES[formatting.verdict(row, ratio)]))
    table.add_row(f"  {formatting.row_label(row, x)}", *cells)
    for percent in ("90", "99", "99.9"):
        _add_percentile(table, results, row, x, percent)
    for baseline in row.baselines:
        series = results.of(row.id, x, f"{BASELINE}{baseline}")
        if series is not None:
            value = formatting.figure(row, spread(series.values).middle)
            what = "bare socket" if baseline == "socket" else "memory copy"
            table.add_row(f"    baseline, {what}: {value}", style="dim")


def _add_percentile(table: Table, results: Results, row: Row, x: int | None, percent: str) -> None:
    by_subject = {}
    for label in results.labels:
        series = results.of(row.id, x, label)
        if series is not None and percent in series.percentiles:
            by_subject[label] = series.percentiles[percent]
    if not by_subject:
        return
    cells = []
    for label in results.labels:
        cells.append(formatting.figure(row, by_subject[label]) if label in by_subject else "")
        if label != results.reference:
            both = label in by_subject and results.reference in by_subject
            cells.append(f"{by_subject[label] / by_subject[results.reference]:.2f}" if both else "")
    table.add_row(f"    {percent} %", *cells, style="dim")


def _failed(results: Results, label: str) -> bool:
    return any(problem.label == label for problem in results.problems)


def _render_comparison(comparison: Comparison, to: Console) -> None:
    from rich.text import Text

    to.print()
    changes = comparison.beyond_noise()
    if changes:
        to.print(Text("Changed beyond the noise", "bold"))
    else:
        to.print(
            Text(f"None of {len(comparison.changes)} figures changed beyond the noise.", "bold")
        )
    for change in changes:
        style = _STYLES.get(change.verdict, "")
        to.print(Text.assemble("  ", (change.verdict, style), f"  {describe_change(change)}"))
    for note in comparison.notes:
        to.print(Text.assemble(("Note: ", "yellow"), note))


def describe_change(change: Change) -> str:
    """Describe a change in one line."""
    row = BY_ID[change.row]
    where = f"{row.section}, {formatting.row_label(row, change.x)}"
    if change.absolute:
        old = formatting.figure(row, change.old.middle)
        new = formatting.figure(row, change.new.middle)
    else:
        old, new = formatting.ratio(change.old), formatting.ratio(change.new)
    return f"{change.label}: {where}: {old} then, {new} now (x {change.factor:.2f})"
