"""Plots of results: made by matplotlib, as PNG files and as SVG for the page."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpc_backends_core.bench import wording
from rpc_backends_core.bench.plan import BY_ID, DYNAMIC, Row
from rpc_backends_core.bench.results import LIMIT, Results
from rpc_backends_core.bench.statistics import Ratio, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people who see few can tell apart; the reference is grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_REFERENCE = "#404448"
_LIMITS = {f"{LIMIT}memcpy": ("#999999", ":"), f"{LIMIT}socket": ("#999999", "--")}
_LIMIT_NAMES = {f"{LIMIT}memcpy": "copying memory", f"{LIMIT}socket": "bare socket"}
_WIDTH, _HEIGHT = 4.2, 3.1  # of a panel, in inches
_STYLE: dict[Any, Any] = {
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
_WIDEST = 50
#: The percentiles that the axis of a distribution names.
_NINES = (0.0, 50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True)
class Plot:
    """What can be drawn of results.

    :ivar name: of its file.
    :ivar caption: what a reader has to know to read it.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Results], Figure]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A plot of some results, as the contents of files."""

    plot: Plot
    svg: bytes
    png: bytes


def available(results: Results) -> list[Plot]:
    """Return the plots of which there is something to draw."""
    there = {row.id for row in results.rows()}
    return [plot for plot in PLOTS if there.intersection(plot.rows)]


def draw(plot: Plot, results: Results) -> Picture:
    """Return a plot as files."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure = plot.draw(results)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
        figure.savefig(png, format="png", facecolor="white", dpi=144)
    return Picture(plot, svg.getvalue(), png.getvalue())


# --- what is drawn -------------------------------------------------------------------------------


def _draw_latencies(results: Results) -> Figure:
    rows = _rows(results, "latency.")
    figure, panels = _panels(len(rows), 3, share_y=True)
    for axes, row in zip(panels, rows, strict=True):
        for label, colour, line in _lines(results, row):
            series = results.of(row.id, None, label)
            if series is None or not series.curve:
                continue
            percents, values = zip(*series.curve, strict=True)
            axes.plot(
                [_nines(one) for one in percents],
                [one * 1e6 for one in values],
                color=colour,
                linestyle=line,
                label=_name(label),
            )
        loaded = ", loaded" if ".loaded." in row.id else ""
        axes.set_title(row.title + loaded)
        axes.set_yscale("log")
        axes.set_xticks([_nines(one) for one in _NINES], [f"{one:g} %" for one in _NINES])
        axes.set_ylabel("us")
        axes.set_xlabel("share of calls that took at most so long")
        _plain_numbers(axes, "y")
    _legend(figure, panels)
    return figure


def _draw_throughput(results: Results) -> Figure:
    rows = _rows(results, "throughput.")
    figure, panels = _panels(len(rows), 2)
    for axes, row in zip(panels, rows, strict=True):
        _along(axes, results, row, _as_it_is)
        axes.set_title(f"{row.section}, by {row.title}")
        axes.set_ylabel("calls per second")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend(figure, panels)
    return figure


def _draw_sizes(results: Results) -> Figure:
    rows = _rows(results, "size.")
    figure, panels = _panels(len(rows), 2, share_y=True, wide=1.25)
    for axes, row in zip(panels, rows, strict=True):
        _along(axes, results, row, _as_bandwidth)
        axes.set_title("echo: there and back" if row.id == "size.echo" else "one way")
        axes.set_ylabel("bytes per second")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: wording.rate(value))
        places = [x for x in results.places(row.id) if x is not None]
        axes.set_xticks(places, [wording.amount(x) for x in places], rotation=35, ha="right")
        axes.minorticks_off()
        axes.set_xlabel("")
    _legend(figure, panels)
    return figure


def _draw_groups(results: Results) -> Figure:
    rows = _rows(results, "group.")
    figure, panels = _panels(len(rows), 3)
    for axes, row in zip(panels, rows, strict=True):
        _along(axes, results, row, _in_mebibytes if row.unit == "B" else _as_it_is)
        axes.set_title(row.title)
        axes.set_ylabel({"s": "seconds", "B": "MiB"}.get(row.unit, "number"))
        axes.set_ylim(bottom=0)
    _legend(figure, panels)
    return figure


def _draw_processor(results: Results) -> Figure:
    rows = _rows(results, "cpu.")
    figure, panels = _panels(len(rows), 3, high=0.7)
    for axes, row in zip(panels, rows, strict=True):
        scale = 1e6 if row.unit == "s" else 1.0
        for place, (label, colour, _) in enumerate(_lines(results, row)):
            series = results.of(row.id, None, label)
            if series is not None:
                value = spread(series.values)
                axes.barh(place, value.middle * scale, color=colour, height=0.6, label=label)
                axes.plot([value.low * scale, value.high * scale], [place] * 2, "k-", linewidth=1)
        axes.set_title(row.title)
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.set_xlabel("us of a core, per call" if row.unit == "s" else "cores")
    _legend(figure, panels)
    return figure


def _draw_ratios(results: Results) -> Figure:
    others = [label for label in results.labels if label != results.reference]
    places = [
        (row, x)
        for row in results.rows()
        for x in wording.shown_places(results, row)
        if any(results.ratio(row.id, x, label) for label in others)
    ]
    figure, (axes,) = _panels(1, 1, wide=2.1, high=max(1.0, (len(places) + 3) * 0.052))
    for number, label in enumerate(others):
        drawn = [(n, row, results.ratio(row.id, x, label)) for n, (row, x) in enumerate(places)]
        ratios = [(n, _times(row, one)) for n, row, one in drawn if one is not None]
        axes.errorbar(
            [one.middle for _, one in ratios],
            [n + (number - (len(others) - 1) / 2) * 0.22 for n, _ in ratios],
            xerr=[
                [one.middle - one.low for _, one in ratios],
                [one.high - one.middle for _, one in ratios],
            ],
            fmt="o",
            markersize=3.5,
            linewidth=1,
            color=_COLOURS[number % len(_COLOURS)],
            label=label,
        )
    axes.axvline(1, color=_REFERENCE, linewidth=1, zorder=0)
    axes.set_xscale("log")
    _plain_numbers(axes, "x")
    names = [f"{_brief(row)}{wording.place(row, x)}" for row, x in places]
    axes.set_yticks(range(len(places)), names)
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_xlabel(f"ratio to {results.reference}: left of 1 is better")
    _legend(figure, [axes])
    return figure


PLOTS = (
    Plot(
        "ratios",
        "Everything beside the reference",
        "Each figure divided by the reference's, with the interval in which that ratio lies (95 %). Left "
        "of 1 is better: of calls per second, what is shown is the time that they mean for one.",
        _draw_ratios,
        tuple(BY_ID),
    ),
    Plot(
        "latency",
        "Distributions of round trips",
        "How long the fastest part of the calls took, on an axis that opens up the slowest: of 1000 "
        "calls, one takes longer than what stands at 99.9 %.",
        _draw_latencies,
        tuple(one for one in BY_ID if one.startswith("latency.")),
    ),
    Plot(
        "throughput",
        "Throughput",
        "No-ops in Python that ended in a second; lines at the points are quartiles.",
        _draw_throughput,
        tuple(one for one in BY_ID if one.startswith("throughput.")),
    ),
    Plot(
        "bandwidth",
        "Bandwidth by size, and its limits",
        "Bytes moved in a second, counted both ways for an echo. The limits are of this machine, "
        "measured in the same turns: one thread copying memory, and a TCP socket of the loopback "
        "interface between two processes that keep their buffers. Shared memory can beat the socket.",
        _draw_sizes,
        ("size.echo", "size.oneway"),
    ),
    Plot(
        "processor",
        "Processor time",
        "What a call costs on each side, also in threads that only look for messages; and what a worker "
        "costs that does nothing.",
        _draw_processor,
        tuple(one for one in BY_ID if one.startswith("cpu.")),
    ),
    Plot(
        "groups",
        "Groups by size",
        "What a worker holds is what it has more than before init_rpc, the mean of all. Joining and "
        "leaving are of one worker, while nobody else does.",
        _draw_groups,
        tuple(one for one in BY_ID if one.startswith("group.")),
    ),
)

# --- how -----------------------------------------------------------------------------------------


def _panels(
    count: int, columns: int, *, share_y: bool = False, wide: float = 1.0, high: float = 1.0
) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, as many in a line as ``columns``."""
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


def _rows(results: Results, prefix: str) -> list[Row]:
    return [row for row in results.rows() if row.id.startswith(prefix)]


def _lines(results: Results, row: Row) -> Iterable[tuple[str, str, str]]:
    """Yield whose lines there are, with colour and style; the reference below the others."""
    yield results.reference, _REFERENCE, "-"
    others = [label for label in results.labels if label != results.reference]
    for number, label in enumerate(others):
        yield label, _COLOURS[number % len(_COLOURS)], "-"
    for limit in row.limits:
        yield f"{LIMIT}{limit}", *_LIMITS[f"{LIMIT}{limit}"]


def _along(
    axes: Axes, results: Results, row: Row, shown: Callable[[Row, int, float], float]
) -> None:
    """Draw medians, with quartiles, along what a row depends on."""
    places = [x for x in results.places(row.id) if x is not None]
    for label, colour, line in _lines(results, row):
        there = [(x, results.of(row.id, x, label)) for x in places]
        spreads = [(x, spread(series.values)) for x, series in there if series is not None]
        if not spreads:
            continue
        marker = "" if label.startswith(LIMIT) else "o"
        xs = [x for x, _ in spreads]
        middles = [shown(row, x, one.middle) for x, one in spreads]
        axes.plot(xs, middles, marker=marker, color=colour, linestyle=line, label=_name(label))
        for x, one in spreads:
            ends = [shown(row, x, one.low), shown(row, x, one.high)]
            axes.plot([x, x], ends, color=colour, linewidth=1)
    if row.id in DYNAMIC:
        ticks = [x for x in places if x == 1 or x % max(1, places[-1] // 8) == 0]
    else:
        axes.set_xscale("log", base=2)
        ticks = places
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.minorticks_off()
    axes.set_xlabel(row.along or "")


def _as_it_is(_row: Row, _x: int, value: float) -> float:
    return value


def _in_mebibytes(_row: Row, _x: int, value: float) -> float:
    return value / (1 << 20)


def _as_bandwidth(row: Row, x: int, value: float) -> float:
    return wording.bandwidth(row, value, x)


def _legend(figure: Figure, panels: list[Axes]) -> None:
    """Show one legend for all panels."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        handles, labels = list(found.values()), list(found)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(found)))


def _plain_numbers(axes: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = sorted(axis.get_view_interval())
    steps = (1, 2, 5) if high / max(low, 1e-12) < 200 else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def _times(row: Row, ratio: Ratio) -> Ratio:
    """Return a ratio as one of times, and no further out than what is worth an axis."""
    ends = (ratio.low, ratio.middle, ratio.high)
    if row.higher_is_better:
        ends = (1 / ratio.high, 1 / ratio.middle, 1 / ratio.low)
    low, middle, high = (min(max(one, 1 / _WIDEST), _WIDEST) for one in ends)
    return Ratio(low, middle, high, ratio.pairs)


def _nines(percent: float) -> float:
    """Return where a percentile stands: each nine more as far from the one before."""
    import math

    return -math.log10(1 - percent / 100)


def _name(label: str) -> str:
    return f"limit: {_LIMIT_NAMES[label]}" if label in _LIMIT_NAMES else label


def _brief(row: Row) -> str:
    if row.id.startswith("latency."):
        return "loaded: " if ".loaded." in row.id else "round trip: "
    return {"throughput": "a call, ", "cpu": "processor: "}.get(row.id.partition(".")[0], "")
