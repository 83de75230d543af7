"""Draw the parts that plots share: panels, lines over the x axis, colours and legends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rpc_backends_bench.plan import DYNAMIC, Row
from rpc_backends_bench.results import BASELINE, Results
from rpc_backends_bench.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, which colour-blind readers can tell apart. The reference is grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
REFERENCE = "#404448"
_BASELINE_STYLES = {f"{BASELINE}memcpy": ("#999999", ":"), f"{BASELINE}socket": ("#999999", "--")}
_BASELINE_NAMES = {f"{BASELINE}memcpy": "memory copy", f"{BASELINE}socket": "bare socket"}
_WIDTH, _HEIGHT = 4.2, 3.1  # of a panel, in inches
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6e8",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
}


def panels(
    count: int, columns: int, *, share_y: bool = False, wide: float = 1.0, high: float = 1.0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels, ``columns`` in a line.

    :param wide: width of a panel, as a multiple of the usual one.
    :param high: height of a panel, as a multiple of the usual one.
    """
    from matplotlib.figure import Figure

    columns = min(columns, count)
    lines = -(-count // columns)
    size = (columns * _WIDTH * wide, lines * _HEIGHT * high + 0.35)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, sharey=share_y, squeeze=False)
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def participants(results: Results, row: Row) -> Iterable[tuple[str, str, str]]:
    """Yield label, colour and line style of each line; the reference first, so it is drawn below."""
    yield results.reference, REFERENCE, "-"
    others = [label for label in results.labels if label != results.reference]
    for number, label in enumerate(others):
        yield label, COLOURS[number % len(COLOURS)], "-"
    for baseline in row.baselines:
        yield f"{BASELINE}{baseline}", *_BASELINE_STYLES[f"{BASELINE}{baseline}"]


def along(
    axes: Axes, results: Results, row: Row, shown: Callable[[Row, int, float], float]
) -> None:
    """Draw the medians of a row, with quartiles, over what the row depends on.

    :param shown: converts a value of the row at ``x`` to what is drawn.
    """
    x_values = [x for x in results.x_values(row.id) if x is not None]
    for label, colour, line in participants(results, row):
        measured = [(x, results.of(row.id, x, label)) for x in x_values]
        spreads = [(x, spread(series.values)) for x, series in measured if series is not None]
        if not spreads:
            continue
        marker = "" if label.startswith(BASELINE) else "o"
        xs = [x for x, _ in spreads]
        middles = [shown(row, x, interval.middle) for x, interval in spreads]
        axes.plot(xs, middles, marker=marker, color=colour, linestyle=line, label=name_of(label))
        for x, interval in spreads:
            ends = [shown(row, x, interval.low), shown(row, x, interval.high)]
            axes.plot([x, x], ends, color=colour, linewidth=1)
    if row.id in DYNAMIC:
        ticks = [x for x in x_values if x == 1 or x % max(1, x_values[-1] // 8) == 0]
    else:
        axes.set_xscale("log", base=2)
        ticks = x_values
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.minorticks_off()
    axes.set_xlabel(row.along or "")


def legend(figure: Figure, panels: list[Axes]) -> None:
    """Add one legend for all panels, and place it below them."""
    by_label: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            by_label.setdefault(label, handle)
    if by_label:
        handles, labels = list(by_label.values()), list(by_label)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(by_label)))


def plain_numbers(axes: Axes, which: str) -> None:
    """Label a logarithmic axis (``x`` or ``y``) with plain numbers instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = sorted(axis.get_view_interval())
    steps = (1, 2, 5) if high / max(low, 1e-12) < 200 else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def name_of(label: str) -> str:
    """Return the name of a participant for a legend."""
    return f"baseline: {_BASELINE_NAMES[label]}" if label in _BASELINE_NAMES else label
