"""Measure what the installed packages add to ``import torch``.

The script makes two environments: one with torch alone, and one with torch and a wheel of every
distribution of this repository. Then it times ``import torch``, each time in a new process. The
situations take turns, so drift of the machine affects all of them:

- *not installed*: torch alone;
- *switched off*: installed, with ``RPC_BACKENDS_AUTOLOAD=0``;
- *installed*: installed, with default settings.

``import torch`` differs by tens of milliseconds between processes, and our part is less than one
millisecond. Therefore our part is also timed by itself (*entry point*): a process imports torch without
its entry points and then does what torch would do, import ours and call it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rpc_backends_bench.statistics import spread  # noqa: E402
from support.environments import (  # noqa: E402 - needs the path from above
    Environment,
    build_wheels,
    distributions,
    read_project,
)

BAR_MS = 1.0

IMPORT = """
    import time
    started = time.perf_counter()
    import torch
    print((time.perf_counter() - started) * 1e3)
"""

ENTRY_POINT = """
    import time
    import torch
    from importlib.metadata import entry_points
    entries = entry_points(group="torch.backends")
    (ours,) = [entry for entry in entries if entry.name == "rpc_backends"]
    started = time.perf_counter()
    ours.load()()
    print((time.perf_counter() - started) * 1e3)
    assert "rpc_backends_core" in torch.distributed.rpc.BackendType.__module__, "not installed"
"""


def make_environments(folder: Path) -> tuple[Environment, Environment]:
    """Make the environment with torch alone and the one with our wheels.

    Both see the same third-party packages: torch reads the metadata of each when it is imported.
    """
    ours = distributions(ROOT)
    needed = {
        requirement for path in ours for requirement in read_project(path).get("dependencies", [])
    }
    others = {requirement for requirement in needed if not requirement.startswith("rpc-backend")}
    base = Environment.of_links(folder / "base", {*others, "numpy"})  # torch warns without numpy
    installed = Environment.on(base, folder / "installed")
    installed.install(*build_wheels(ours, folder / "dist").values())
    return Environment.on(base, folder / "plain"), installed


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the times of each situation in milliseconds, one for each round."""
    say(f"making two environments in {folder} (half a minute)")
    plain, installed = make_environments(folder)
    situations = {
        "not installed": (plain, IMPORT, {}),
        "switched off": (installed, IMPORT, {"RPC_BACKENDS_AUTOLOAD": "0"}),
        "installed": (installed, IMPORT, {}),
        "entry point": (installed, ENTRY_POINT, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    }
    times: dict[str, list[float]] = {name: [] for name in situations}
    for turn in range(rounds + 1):
        say(f"round {turn} of {rounds}" + (" (warm-up, not counted)" if turn == 0 else ""))
        names = list(situations)
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            environment, code, env = situations[name]
            took = float(environment.run(code, env=env).stdout)
            if turn:
                times[name].append(took)
    return times


def summarise(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return median and quartiles of each situation."""
    summary = {}
    for name, values in times.items():
        low, median, high = spread(values)
        summary[name] = {"median_ms": median, "lower_ms": low, "upper_ms": high}
    return summary


def say(text: str) -> None:
    """Print progress to stderr, so that stdout has only the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="processes for each situation (15)")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2, because quartiles need two values")

    with tempfile.TemporaryDirectory(prefix="import-cost-") as folder:
        times = measure(Path(folder), arguments.rounds)
    summary = summarise(times)
    if arguments.json:
        print(json.dumps({"bar_ms": BAR_MS, "summary": summary, "times_ms": times}, indent=2))
        return

    reference = summary["not installed"]["median_ms"]
    print(f"{'':15}{'median':>10}{'quartiles':>22}{'more than not installed':>26}")
    for name, row in summary.items():
        quartiles = f"{row['lower_ms']:.2f} - {row['upper_ms']:.2f}"
        more = "" if name == "entry point" else f"{row['median_ms'] - reference:+.2f} ms"
        print(f"{name:15}{row['median_ms']:>7.2f} ms{quartiles:>19} ms{more:>26}")
    ours = summary["entry point"]["median_ms"]
    verdict = "within" if ours <= BAR_MS else "ABOVE"
    print(f"\nOur entry point adds {ours:.2f} ms: {verdict} the bar of {BAR_MS:g} ms.")


if __name__ == "__main__":
    main()
