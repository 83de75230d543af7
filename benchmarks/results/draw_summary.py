"""Draw summary.png, the chart of the project's README, from summary.json.

    python benchmarks/results/draw_summary.py                       # only draws
    sudo .venv/bin/python benchmarks/results/draw_summary.py --measure   # measures, then draws

``--measure`` measures the rows of the chart and writes summary.json. It takes about 8 minutes, needs an
idle machine, and must run as root, because it keeps the cores awake (as ``rpc-backends bench --awake``).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from rpc_backends_bench.command import measure_plan, set_environment
from rpc_backends_bench.disturbances import disturbances
from rpc_backends_bench.plan import FULL, MiB, Plan
from rpc_backends_bench.results import Results
from rpc_backends_bench.subjects import parse

HERE = Path(__file__).parent
FILE = HERE / "summary.json"
REFERENCE = "TENSORPIPE@torch"
ROWS = [
    ("latency.noop", None, "one call at a time"),
    ("throughput.inflight", 64, "64 calls in flight, time per call"),
    ("cpu.sync.callee", None, "processor time of a call, callee"),
    ("size.echo", MiB, "echo of 1 MiB"),
    ("size.echo", 64 * MiB, "echo of 64 MiB"),
    ("group.start", 8, "start of 8 workers"),
    ("group.start", 32, "start of 32 workers"),
    ("group.memory", 16, "memory of a worker, group of 16"),
    ("group.join", 16, "the 16th worker joins"),
]
ENGINES = {"TENSORPIPE": ("#d55e00", "s"), "ZEROMQ": ("#0072b2", "o"), "UCX": ("#009e73", "^")}


def plan() -> Plan:
    """Return a plan that measures only the rows of the chart."""
    return replace(
        FULL,
        name="summary",
        only=tuple(dict.fromkeys(row for row, _, _ in ROWS)),
        in_flight=(64,),
        sizes=(MiB, 64 * MiB),
        groups=((8, 12), (16, 8), (32, 5)),
        joins=((16, 8),),
    )


def measure(file: Path) -> bool:
    """Measure and write the results to ``file``; return whether everything was measured."""
    set_environment()
    subjects = [parse(name) for name in (*reversed(ENGINES), REFERENCE)]
    results, interrupted = measure_plan(plan(), subjects, awake=True, quiet=False)
    for problem in results.problems:
        print(f"{problem.label}, {problem.at}: {problem.text}", file=sys.stderr)
    for text in disturbances(results):
        print(text, file=sys.stderr)
    if interrupted or results.problems:
        print(f"{file} is unchanged", file=sys.stderr)
        return False
    file.write_text(json.dumps(results.to_json()) + "\n")
    return True


def draw(results: Results, file: Path) -> None:
    """Draw the rows of the chart: each engine's median divided by that of stock torch."""
    figure, axes = plt.subplots(figsize=(7.2, 3.9), dpi=150)
    for name, (colour, marker) in ENGINES.items():
        ratios = []
        for row, x, _ in ROWS:
            spread = results.ratio(row, x, name)
            assert spread is not None, f"{row} {x} of {name} was not measured"
            ratio = spread.middle
            ratios.append(1 / ratio if row.startswith("throughput") else ratio)
        axes.plot(ratios, range(len(ROWS)), marker, color=colour, label=name, markersize=7)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4], ["0.1", "0.25", "0.5", "1 (stock torch)", "2", "4"])
    axes.minorticks_off()
    axes.set_yticks(range(len(ROWS)), [label for _, _, label in ROWS])
    axes.invert_yaxis()
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.set_xlabel("ratio to stock torch: further left is better")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=len(ENGINES), frameon=False)
    figure.savefig(file, bbox_inches="tight")


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="measure first (8 minutes, as root)")
    if parser.parse_args().measure and not measure(FILE):
        return 1
    draw(Results.read(FILE), HERE / "summary.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
