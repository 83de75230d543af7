"""Draw plots of results with matplotlib, as PNG files and as SVG for the page."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpc_backends_bench import drawing, formatting
from rpc_backends_bench.plan import BY_ID, Row
from rpc_backends_bench.results import Results
from rpc_backends_bench.statistics import Ratio, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Ratios beyond this factor are drawn at the edge of the axis.
_MAX_RATIO = 50
#: The percentiles at the ticks of a distribution's axis.
_NINES = (0.0, 50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True)
class Plot:
    """A kind of plot.

    :ivar name: the name of its file, without suffix.
    :ivar caption: explains how to read the plot.
    :ivar rows: the ids of the rows that it shows.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Results], Figure]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A drawn plot: the contents of an SVG and of a PNG file."""

    plot: Plot
    svg: bytes
    png: bytes


def available(results: Results) -> list[Plot]:
    """Return the plots for which ``results`` has values."""
    measured = {row.id for row in results.rows()}
    return [plot for plot in PLOTS if measured.intersection(plot.rows)]


def draw(plot: Plot, results: Results) -> Picture:
    """Draw a plot."""
    import matplotlib as mpl

    with mpl.rc_context(drawing.STYLE):
        figure = plot.draw(results)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
        figure.savefig(png, format="png", facecolor="white", dpi=144)
    return Picture(plot, svg.getvalue(), png.getvalue())


# --- the plots -----------------------------------------------------------------------------------


def _draw_latencies(results: Results) -> Figure:
    rows = _rows(results, "latency.")
    figure, panels = drawing.panels(len(rows), 3, share_y=True)
    for axes, row in zip(panels, rows, strict=True):
        for label, colour, line in drawing.participants(results, row):
            series = results.of(row.id, None, label)
            if series is None or not series.curve:
                continue
            percents, values = zip(*series.curve, strict=True)
            axes.plot(
                [_nines(percent) for percent in percents],
                [value * 1e6 for value in values],
                color=colour,
                linestyle=line,
                label=drawing.name_of(label),
            )
        loaded = ", loaded" if ".loaded." in row.id else ""
        axes.set_title(row.title + loaded)
        axes.set_yscale("log")
        axes.set_xticks(
            [_nines(percentile) for percentile in _NINES],
            [f"{percentile:g} %" for percentile in _NINES],
        )
        axes.set_ylabel("us")
        axes.set_xlabel("latency percentiles (CDF)")
        drawing.plain_numbers(axes, "y")
    drawing.legend(figure, panels)
    return figure


def _draw_throughput(results: Results) -> Figure:
    rows = _rows(results, "throughput.")
    figure, panels = drawing.panels(len(rows), 2)
    for axes, row in zip(panels, rows, strict=True):
        drawing.along(axes, results, row, _unchanged)
        axes.set_title(f"{row.section}, by {row.title}")
        axes.set_ylabel("calls per second")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    drawing.legend(figure, panels)
    return figure


def _draw_sizes(results: Results) -> Figure:
    rows = _rows(results, "size.")
    figure, panels = drawing.panels(len(rows), 2, share_y=True, wide=1.25)
    for axes, row in zip(panels, rows, strict=True):
        drawing.along(axes, results, row, _as_bandwidth)
        axes.set_title("echo: there and back" if row.id == "size.echo" else "one way")
        axes.set_ylabel("bytes per second")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: formatting.rate(value))
        sizes = [x for x in results.x_values(row.id) if x is not None]
        axes.set_xticks(sizes, [formatting.amount(x) for x in sizes], rotation=35, ha="right")
        axes.minorticks_off()
        axes.set_xlabel("")
    drawing.legend(figure, panels)
    return figure


def _draw_groups(results: Results) -> Figure:
    rows = _rows(results, "group.")
    figure, panels = drawing.panels(len(rows), 3)
    for axes, row in zip(panels, rows, strict=True):
        drawing.along(axes, results, row, _in_mebibytes if row.unit == "B" else _unchanged)
        axes.set_title(row.title)
        axes.set_ylabel({"s": "seconds", "B": "MiB"}.get(row.unit, "number"))
        axes.set_ylim(bottom=0)
    drawing.legend(figure, panels)
    return figure


def _draw_processor(results: Results) -> Figure:
    rows = _rows(results, "cpu.")
    figure, panels = drawing.panels(len(rows), 3, high=0.7)
    for axes, row in zip(panels, rows, strict=True):
        scale = 1e6 if row.unit == "s" else 1.0
        for place, (label, colour, _) in enumerate(drawing.participants(results, row)):
            series = results.of(row.id, None, label)
            if series is not None:
                value = spread(series.values)
                axes.barh(place, value.middle * scale, color=colour, height=0.6, label=label)
                axes.plot([value.low * scale, value.high * scale], [place] * 2, "k-", linewidth=1)
        axes.set_title(row.title)
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.set_xlabel("us of a core, per call" if row.unit == "s" else "cores")
    drawing.legend(figure, panels)
    return figure


def _draw_ratios(results: Results) -> Figure:
    others = [label for label in results.labels if label != results.reference]
    drawn_rows = [
        (row, x)
        for row in results.rows()
        for x in formatting.shown_x_values(results, row)
        if any(results.ratio(row.id, x, label) for label in others)
    ]
    height = max(1.0, (len(drawn_rows) + 3) * 0.052)
    figure, (axes,) = drawing.panels(1, 1, wide=2.1, high=height)
    for number, label in enumerate(others):
        drawn = [(n, row, results.ratio(row.id, x, label)) for n, (row, x) in enumerate(drawn_rows)]
        ratios = [
            (n, _ratio_of_times(row, ratio_row))
            for n, row, ratio_row in drawn
            if ratio_row is not None
        ]
        axes.errorbar(
            [ratio.middle for _, ratio in ratios],
            [n + (number - (len(others) - 1) / 2) * 0.22 for n, _ in ratios],
            xerr=[
                [ratio.middle - ratio.low for _, ratio in ratios],
                [ratio.high - ratio.middle for _, ratio in ratios],
            ],
            fmt="o",
            markersize=3.5,
            linewidth=1,
            color=drawing.COLOURS[number % len(drawing.COLOURS)],
            label=label,
        )
    axes.axvline(1, color=drawing.REFERENCE, linewidth=1, zorder=0)
    axes.set_xscale("log")
    drawing.plain_numbers(axes, "x")
    names = [f"{_brief(row)}{formatting.row_label(row, x)}" for row, x in drawn_rows]
    axes.set_yticks(range(len(drawn_rows)), names)
    axes.set_ylim(len(drawn_rows) - 0.4, -0.6)
    axes.set_xlabel(f"ratio to {results.reference}: left of 1 is better")
    drawing.legend(figure, [axes])
    return figure


PLOTS = (
    Plot(
        "ratios",
        "Ratios to the reference",
        "Each figure divided by that of the reference, with its 95 % confidence interval. Left of 1 is "
        "better. Calls per second are shown as the time per call.",
        _draw_ratios,
        tuple(BY_ID),
    ),
    Plot(
        "latency",
        "Distributions of round trips",
        "Latency percentiles of single calls: at 90 %, nine of ten calls take at most this long. The "
        "axis is stretched towards the slowest calls.",
        _draw_latencies,
        tuple(row for row in BY_ID if row.startswith("latency.")),
    ),
    Plot(
        "throughput",
        "Throughput",
        "No-ops in Python per second. The vertical lines at the points show quartiles.",
        _draw_throughput,
        tuple(row for row in BY_ID if row.startswith("throughput.")),
    ),
    Plot(
        "bandwidth",
        "Bandwidth by size, and baselines",
        "Bytes moved per second; an echo counts both directions. The baselines are measured on the same "
        "machine in the same rounds: a memory copy by one thread, and a TCP socket over the loopback "
        "interface between two processes that reuse their buffers. Shared memory can be faster than the "
        "socket.",
        _draw_sizes,
        ("size.echo", "size.oneway"),
    ),
    Plot(
        "processor",
        "Processor time",
        "Processor time per call on each side, in all threads, including those that poll for messages. "
        "For an idle worker, the processor cores that it takes.",
        _draw_processor,
        tuple(row for row in BY_ID if row.startswith("cpu.")),
    ),
    Plot(
        "groups",
        "Groups by size",
        "Memory, threads and files are the increase since before init_rpc, the mean of all workers. One "
        "worker at a time joins or leaves.",
        _draw_groups,
        tuple(row for row in BY_ID if row.startswith("group.")),
    ),
)


# --- conversions of values to what is drawn -------------------------------------------------------


def _rows(results: Results, prefix: str) -> list[Row]:
    return [row for row in results.rows() if row.id.startswith(prefix)]


def _unchanged(_row: Row, _x: int, value: float) -> float:
    return value


def _in_mebibytes(_row: Row, _x: int, value: float) -> float:
    return value / (1 << 20)


def _as_bandwidth(row: Row, x: int, value: float) -> float:
    return formatting.bandwidth(row, value, x)


def _ratio_of_times(row: Row, ratio: Ratio) -> Ratio:
    """Return a ratio as a ratio of times (below 1 is better), limited to the range of the axis."""
    ends = (ratio.low, ratio.middle, ratio.high)
    if row.higher_is_better:
        high, middle, low = (1 / max(end, 1 / _MAX_RATIO) for end in ends)
        ends = (low, middle, high)
    low, middle, high = (min(max(end, 1 / _MAX_RATIO), _MAX_RATIO) for end in ends)
    return Ratio(low, middle, high, ratio.pairs)


def _nines(percent: float) -> float:
    """Return the position of a percentile on the axis: 90, 99 and 99.9 % are equally far apart."""
    import math

    return -math.log10(1 - percent / 100)


def _brief(row: Row) -> str:
    if row.id.startswith("latency."):
        return "loaded: " if ".loaded." in row.id else "round trip: "
    return {"throughput": "time per call, ", "cpu": "processor: "}.get(row.id.partition(".")[0], "")
