"""Draw the plots and make the tables of `docs/explanation/scale.md`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from counting import SHUTDOWN, START, Count, Phase
from matplotlib.ticker import FuncFormatter

from rpc_backends_bench.drawing import COLOURS, STYLE, panels

Carried = dict[str, Any]
Points = list[tuple[int, float]]

UV = 'TENSORPIPE:_transports=["uv"]'
TCP = "ZEROMQ:unix_sockets=false"
NAMES = {
    "ZEROMQ": "ZEROMQ",
    TCP: "ZEROMQ, TCP",
    "TENSORPIPE": "TENSORPIPE",
    UV: "TENSORPIPE, TCP",
    "TENSORPIPE@torch": "torch's TENSORPIPE",
}
_COLOURS = {
    "ZEROMQ": COLOURS[0],
    TCP: COLOURS[5],
    "TENSORPIPE": COLOURS[1],
    UV: COLOURS[4],
    "TENSORPIPE@torch": "#707478",
}
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def write(counts: list[Count], whole: dict[str, Any], folder: Path) -> None:
    """Write `store.png` and `worker.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, figure in (
            ("store", _store(counts, whole["carried"])),
            ("worker", _worker(counts)),
        ):
            figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})


# --- plots ----------------------------------------------------------------------------------------


def _store(counts: list[Count], carried: Carried) -> Any:
    figure, (requests, size, seconds, joins) = panels(4, 2)

    def both(axes: Any, real: Callable[[Phase], float], key: str, unit: float = 1.0) -> None:
        for subject, each in carried.items():
            line = [(int(n), one[START][key] / unit) for n, one in each["static"].items()]
            axes.plot(*_xy(line), color=_COLOURS[subject], label=NAMES[subject])
            points = [(one.size, real(one.phase(START)) / unit) for one in _static(counts, subject)]
            axes.plot(*_xy(points), "o", color=_COLOURS[subject])

    both(requests, lambda phase: sum(phase.totals), "requests")
    _finish(requests, "Store requests to start a static group", "requests")
    both(size, lambda phase: sum(phase.store_received), "received")
    _finish(size, "Bytes from the store to start a static group", "", bytes_=True)
    for subject, each in carried.items():
        line = [(int(n), one[START]["store_seconds"]) for n, one in each["static"].items()]
        seconds.plot(*_xy(line), color=_COLOURS[subject], label=NAMES[subject])
    _finish(seconds, "Store's time to start a static group", "seconds (simulated)")
    for subject, each in carried.items():
        for kind, style in (("joins", "-"), ("at_once", "--")):
            share = 1 if kind == "joins" else 0
            line = [
                (int(n), one["requests"] / (1 if share else int(n)))
                for n, one in each[kind].items()
            ]
            joins.plot(
                *_xy(line), style, color=_COLOURS[subject], label=f"{NAMES[subject]}, {kind}"
            )
    _finish(joins, "Store requests of one join", "requests")
    joins.legend(
        handles=[
            mpl.lines.Line2D([], [], color="black", ls=style, label=label)
            for style, label in (
                ("-", "last of joins one by one"),
                ("--", "mean of joins all at once"),
            )
        ],
        fontsize=8,
    )
    requests.legend(fontsize=8)
    return figure


def _worker(counts: list[Count]) -> Any:
    figure, (connections, files, memory, lines) = panels(4, 2)
    for axes, what, unit in (
        (connections, "connections", 1),
        (files, "files", 1),
        (memory, "own", 1),
    ):
        for subject, title in NAMES.items():
            for phase, style in (("mesh", "-o"), ("ring", ":")):
                points = [
                    (one.size, _grown(one, phase, what) / unit)
                    for one in _static(counts, subject)
                    if any(each.name == phase for each in one.phases)
                ]
                label = title if phase == "mesh" else None
                axes.plot(*_xy(points), style, color=_COLOURS[subject], label=label)
    _finish(connections, "Connections of a worker", "")
    _finish(files, "Open files of a worker", "")
    files.axhline(1024, color="#999999", lw=0.8, ls="--")
    files.annotate("the usual limit, 1024", (2, 1150), fontsize=8, color="#666666")
    _finish(memory, "Memory of a worker", "", bytes_=True)
    for subject in NAMES:
        points = [
            (rank, phase.call_bytes[rank - 1])
            for one in counts
            if one.dynamic and one.subject == subject
            for rank, phase in enumerate(one.phases[: one.size], 1)
            if phase.calls[rank - 1] and rank & (rank - 1) == 0
        ]
        lines.plot(*_xy(points), "-o", color=_COLOURS[subject])
    _finish(lines, "Bytes in the calls of a join", "", bytes_=True)
    lines.legend(
        *connections.get_legend_handles_labels(),
        fontsize=8,
        title="all call all (dotted: ring)",
        title_fontsize=8,
    )
    return figure


def _finish(axes: Any, title: str, label: str, *, bytes_: bool = False) -> None:
    axes.set_title(title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2 if bytes_ else 10)
    axes.set_ylabel(label)
    axes.set_xlabel("workers")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if bytes_:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))


def _xy(points: Points) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


# --- tables ---------------------------------------------------------------------------------------


def tables(counts: list[Count], whole: dict[str, Any]) -> str:
    """Return the tables of the page, as Markdown."""
    parts = ["Counted, static groups:", _table(*_static_rows(counts))]
    parts += ["Counted, dynamic groups:", _table(*_dynamic_rows(counts))]
    parts += ["Simulated:", _table(*_carried_rows(whole["carried"]))]
    parts += [f"- {one.subject}, {one.size}: {one.failed}" for one in counts if one.failed]
    parts += [f"- {one.subject}, {one.size}: {text}" for one in counts for text in one.left_out]
    return "\n\n".join(parts)


def _static_rows(counts: list[Count]) -> tuple[list[str], list[list[str]]]:
    head = [
        "", "N", "requests, start", "last", "from the store", "connections, ring", "mesh",
        "files, mesh", "memory, ring", "mesh", "threads", "calls, shutdown", "their bytes",
    ]  # fmt: skip
    rows = []
    for subject, title in NAMES.items():
        for one in _static(counts, subject):
            phases = {phase.name: phase for phase in one.phases}
            start, end = phases[START], phases.get(SHUTDOWN)
            rows.append(
                [
                    title, str(one.size), str(min(start.totals)), str(max(start.totals)),
                    in_bytes(statistics.fmean(start.store_received)),
                    *(_or_not(one, phase, "connections", str) for phase in ("ring", "mesh")),
                    _or_not(one, "mesh", "files", str),
                    *(_or_not(one, phase, "own", in_bytes) for phase in ("ring", "mesh")),
                    _or_not(one, "ring", "threads", str),
                    str(sum(end.calls)) if end else "-",
                    in_bytes(sum(end.call_bytes)) if end else "-",
                ]
            )  # fmt: skip
    return head, rows


def _dynamic_rows(counts: list[Count]) -> tuple[list[str], list[list[str]]]:
    head = ["", "join number", "requests", "of others", "from the store", "calls", "their bytes"]
    rows = []
    for subject, title in NAMES.items():
        for one in sorted(counts, key=lambda count: count.size):
            if not one.dynamic or one.subject != subject:
                continue
            largest = max((x.size for x in counts if x.dynamic and x.subject == subject), default=0)
            if one.size != largest:
                continue
            for rank in (1, 3, 7, 15, 31, 63):
                if rank >= len([p for p in one.phases if p.name.startswith("join")]):
                    continue
                phase = one.phases[rank]
                rows.append(
                    [
                        title, str(rank + 1), str(phase.totals[rank]),
                        str(sum(phase.totals) - phase.totals[rank]),
                        in_bytes(phase.store_received[rank]), str(sum(phase.calls)),
                        in_bytes(sum(phase.call_bytes)),
                    ]
                )  # fmt: skip
    return head, rows


def _carried_rows(carried: Carried) -> tuple[list[str], list[list[str]]]:
    head = [
        "", "N", "requests", "from the store", "store's thread", "start", "first calls to one",
        "shutdown", "its calls' bytes",
    ]  # fmt: skip
    rows = []
    for subject, each in carried.items():
        for size, phases in each["static"].items():
            if int(size) < 64:
                continue
            start, star, end = phases[START], phases["star"], phases[SHUTDOWN]
            rows.append(
                [
                    NAMES[subject], str(size), f"{start['requests']:,}",
                    in_bytes(start["received"]), f"{start['store_seconds']:.2f} s",
                    f"{start['seconds']:.2f} s", f"{star['seconds']:.2f} s",
                    f"{end['seconds']:.2f} s", in_bytes(end["call_bytes"]),
                ]
            )  # fmt: skip
    return head, rows


def _or_not(one: Count, phase: str, what: str, form: Callable[[Any], str]) -> str:
    try:
        grown = _grown(one, phase, what)
    except LookupError:
        return "-"
    return form(round(grown))


def _grown(one: Count, phase: str, what: str) -> float:
    """Return the median growth of a resource since the time before the workers joined."""
    held = one.phase(phase).held
    return statistics.median(
        now[what] - before[what] for now, before in zip(held, one.before, strict=True)
    )


def _static(counts: Iterable[Count], subject: str) -> list[Count]:
    found = [one for one in counts if one.subject == subject and not one.dynamic and one.phases]
    return sorted(found, key=lambda one: one.size)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_bytes(value: float) -> str:
    """Return a number of bytes with three digits and its unit."""
    for unit, name in _UNITS:
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"
