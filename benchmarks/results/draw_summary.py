"""Draw summary.png, the chart of the project's README, from summary.json, or from new measurements.

    python benchmarks/results/draw_summary.py                         # draws summary.json again
    python benchmarks/results/draw_summary.py BENCH.json HOSTS.json   # writes it first

BENCH.json is the ``results.json`` of a run of ``rpc-backends bench`` of all engines, HOSTS.json is what
``benchmarks/links hosts --json`` wrote. README.md has the commands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from rpc_backends_bench.plan import MiB
from rpc_backends_bench.results import Results

HERE = Path(__file__).parent
FILE = HERE / "summary.json"
REFERENCE = "TENSORPIPE@torch"
ROWS = [
    ("latency.noop", None, "one call at a time"),
    ("throughput.inflight", 64, "64 calls in flight, time per call"),
    ("cpu.sync.callee", None, "processor time of a call, callee"),
    ("size.echo", MiB, "echo of 1 MiB"),
    ("size.echo", 16 * MiB, "echo of 16 MiB"),
    ("size.echo", 64 * MiB, "echo of 64 MiB"),
    ("group.start", 16, "start of 16 workers"),
]
#: Rows of `links hosts`, and the sides that are drawn as an engine. ZEROMQ encrypts.
HOSTS = [
    ("no-op", "between hosts: one call at a time"),
    ("echo of 1 MiB", "between hosts: echo of 1 MiB"),
    ("echo of 64 MiB", "between hosts: echo of 64 MiB"),
]
SIDES = {"ZEROMQ": "ZEROMQ:secret", "UCX": "UCX"}
ENGINES = {"TENSORPIPE": ("#d55e00", "s"), "ZEROMQ": ("#0072b2", "o"), "UCX": ("#009e73", "^")}

#: The title of each row of the chart, and each engine's ratio to stock torch.
Ratios = dict[str, dict[str, float]]


def within_a_host(results: Results) -> Ratios:
    """Return the ratios of a run of the bench: times, also for calls in flight."""
    ratios: Ratios = {}
    for row, x, title in ROWS:
        ratios[title] = {}
        for name in ENGINES:
            spread = results.ratio(row, x, name)
            assert spread is not None, f"{row} {x} of {name} was not measured"
            ratio = spread.middle
            ratios[title][name] = round(1 / ratio if row.startswith("throughput") else ratio, 3)
    return ratios


def between_hosts(values: dict[str, list[dict[str, dict[str, float]]]]) -> Ratios:
    """Return the ratios of medians over the rounds of `links hosts`."""
    sides = {place.partition(": ")[2]: rounds for place, rounds in values.items()}

    def median(side: str, row: str) -> float:
        return statistics.median(numbers[row]["median"] for numbers in sides[side])

    return {
        title: {
            name: round(median(side, row) / median(REFERENCE, row), 3)
            for name, side in SIDES.items()
        }
        for row, title in HOSTS
    }


def draw(ratios: Ratios, file: Path) -> None:
    """Draw a point for each engine's ratio."""
    figure, axes = plt.subplots(figsize=(7.2, 4.3), dpi=150)
    for name, (colour, marker) in ENGINES.items():
        points = [(row[name], at) for at, row in enumerate(ratios.values()) if name in row]
        axes.plot(*zip(*points, strict=True), marker, color=colour, label=name, markersize=7)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.axhline(len(ROWS) - 0.5, color="#bbbbbb", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2], ["0.1", "0.25", "0.5", "1 (stock torch)", "2"])
    axes.minorticks_off()
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.set_xlabel("ratio to stock torch: further left is better; between hosts, ZEROMQ encrypts")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=len(ENGINES), frameon=False)
    figure.savefig(file, bbox_inches="tight")


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "measured", nargs="*", type=Path, metavar="FILE", help="BENCH.json HOSTS.json"
    )
    files = parser.parse_args().measured
    if files:
        if len(files) != 2:
            parser.error(f"give BENCH.json and HOSTS.json, or neither; {len(files)} given")
        hosts: Any = json.loads(files[1].read_text())
        ratios = within_a_host(Results.read(files[0])) | between_hosts(hosts)
        FILE.write_text(json.dumps(ratios, indent=1) + "\n")
    draw(json.loads(FILE.read_text()), HERE / "summary.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
