"""Draw summary.png, the plot of the project's README, from the results in awake/.

Run it in this folder: ``python draw_summary.py``.
"""

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
ROWS = [
    ("latency.noop", None, "one call at a time"),
    ("throughput.inflight", 64, "64 calls in flight, time per call"),
    ("cpu.sync.callee", None, "processor time of a call, callee"),
    ("size.echo", 1 << 20, "echo of 1 MiB (ZEROMQ encrypted)"),
    ("size.echo", 64 << 20, "echo of 64 MiB (ZEROMQ encrypted)"),
    ("group.start", 8, "start of 8 workers"),
    ("group.start", 32, "start of 32 workers"),
    ("group.memory", 16, "memory of a worker, group of 16"),
    ("group.join", 16, "the 16th worker joins"),
]
ENGINES = {"TENSORPIPE": ("#d55e00", "s"), "ZEROMQ": ("#0072b2", "o")}


def draw(results: Path, file: Path) -> None:
    """Draw the chosen rows: each engine's median divided by that of stock torch."""
    found = {(row["id"], row["x"]): row for row in json.loads(results.read_text())["rows"]}
    figure, axes = plt.subplots(figsize=(7.2, 3.9), dpi=150)
    for name, (colour, marker) in ENGINES.items():
        ratios = []
        for row, x, _ in ROWS:
            medians = {key: one["median"] for key, one in found[row, x]["results"].items()}
            ratio = medians[name] / medians["TENSORPIPE@torch"]
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
    axes.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=2, frameon=False)
    figure.savefig(file, bbox_inches="tight")


if __name__ == "__main__":
    draw(HERE / "awake" / "results.json", HERE / "summary.png")
