"""Compare rows of `rpc-backends bench` with bars, each relative to stock torch.

The bench measures the rows in processes with our backends and in processes of stock torch
(`NAME@torch`): TENSORPIPE and ZEROMQ against torch's TENSORPIPE, FAULTY_TENSORPIPE against torch's own.
A ratio is our figure divided by stock torch's: below 1 is better, except for calls per second, where
above 1 is better. The *control* is stock torch against itself; its difference from 1 is the method's
error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from _report import Bar, Comparison, Report, parser

from rpc_backends_bench import formatting
from rpc_backends_bench.command import measure_plan, set_environment
from rpc_backends_bench.plan import BY_ID, FULL, QUICK, MiB, Plan
from rpc_backends_bench.subjects import parse

#: A row of the bench, and for which size or number it is taken; None if the row has only one figure.
Place = tuple[str, int | None]

_SAME, _NO_MORE, _HALF = Bar(1.03, 0.97), Bar(1.0), Bar(0.5)
_CALLS: tuple[Place, ...] = (("latency.noop", None), ("latency.builtin", None), ("size.echo", MiB))
_ZEROMQ: dict[Place, Bar] = {
    **dict.fromkeys(_CALLS, _NO_MORE),
    ("throughput.inflight", 16): Bar(low=1.5),
    ("throughput.inflight", 256): Bar(low=1.5),
    ("group.start", 16): _HALF,
}
#: The bars, by reference, backend and row.
BARS: dict[str, dict[str, dict[Place, Bar]]] = {
    "TENSORPIPE@torch": {
        "TENSORPIPE": {
            **dict.fromkeys(_CALLS, _SAME),
            ("group.start", 4): _NO_MORE,
            ("group.start", 32): Bar(0.7),
            ("group.join", 32): Bar(0.25),
        },
        "ZEROMQ": _ZEROMQ,
        "ZEROMQ:encryption=false": {
            **_ZEROMQ,
            ("size.echo", 64 * MiB): _NO_MORE,
            ("size.oneway", 64 * MiB): _NO_MORE,
        },
    },
    "FAULTY_TENSORPIPE@torch": {
        "FAULTY_TENSORPIPE": {**dict.fromkeys(_CALLS, _SAME), ("group.start", 4): _NO_MORE},
    },
}
CONTROL = "control"


def restricted(plan: Plan, places: Iterable[Place]) -> Plan:
    """Return the plan with only the rows and sizes that have bars."""
    wanted: dict[str, set[int]] = {row: set() for row in BY_ID}
    for row, x in places:
        wanted[row].add(x or 0)
    return replace(
        plan,
        only=tuple(row for row in wanted if wanted[row]),
        in_flight=tuple(
            number for number in plan.in_flight if number in wanted["throughput.inflight"]
        ),
        sizes=tuple(sorted(wanted["size.echo"] | wanted["size.oneway"])),
        groups=tuple(group for group in plan.groups if group[0] in wanted["group.start"]),
        joins=tuple(join for join in plan.joins if join[0] in wanted["group.join"]),
    )


def measure(
    plan: Plan, reference: str, bars: dict[str, dict[Place, Bar]], report: Report
) -> tuple[bool, bool]:
    """Measure the backends that have bars, the control and the reference.

    :returns: whether no backend failed, and whether the run was interrupted.
    """
    places = {place: bar for by_place in bars.values() for place, bar in by_place.items()}
    subjects = [*map(parse, bars), replace(parse(reference), label=CONTROL), parse(reference)]
    results, interrupted = measure_plan(
        restricted(plan, places), subjects, awake=False, quiet=False
    )
    for problem in results.problems:
        print(f"{problem.label}, {problem.at}: {problem.text}", file=sys.stderr)
    for label in results.labels[:-1]:
        for row, x in bars.get(label, places):
            ours, theirs = (results.of(row, x, side) for side in (label, reference))
            report.add(
                Comparison(
                    f"{label} against {reference}",
                    f"{BY_ID[row].section}: {formatting.row_label(BY_ID[row], x)}",
                    bars[label][row, x] if label in bars else None,
                    partial(formatting.figure, BY_ID[row]),
                    ours.points if ours else [],
                    theirs.points if theirs else [],
                )
            )
    return not results.problems, interrupted


def main() -> int:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument(
        "backends",
        nargs="*",
        help="backends with bars to measure, as NAME[:OPTION=VALUE,...] (all that are installed)",
    )
    arguments = options.parse_args()
    known = [label for bars in BARS.values() for label in bars]
    if unknown := set(arguments.backends) - set(known):
        options.error(
            f"there are no bars for {', '.join(unknown)}; there are bars for: {', '.join(known)}"
        )
    set_environment()
    from rpc_backends_core import records

    installed = {record.name for record in records()}
    chosen = arguments.backends or [name for name in known if parse(name).name in installed]
    plan = replace(QUICK if arguments.quick else FULL, seed=arguments.seed)
    report = Report(
        *("Backends against stock torch", "ours", "stock torch"),
        *("rpc-backend-tensorpipe", "rpc-backend-zeromq"),
    )
    whole, interrupted = True, False
    for reference, bars in BARS.items():
        if (some := {bar: bars[bar] for bar in bars if bar in chosen}) and not interrupted:
            good, interrupted = measure(plan, reference, some, report)
            whole = whole and good
    met = report.finish(arguments)
    if interrupted:
        return 130
    return int(not whole or (arguments.check and not met))


if __name__ == "__main__":
    sys.exit(main())
