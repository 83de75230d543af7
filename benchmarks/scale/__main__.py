"""Count what backends do as groups grow, and compare it with what the simulation says.

    python benchmarks/scale count --json counts.json       # real groups of 2 ... 64: half an hour
    python benchmarks/scale simulate --json carried.json   # the same protocols, to thousands of workers
    python benchmarks/scale draw counts.json carried.json --out docs/explanation/scale

Counted of each worker: requests to the store (on the wire, by kind), RPC calls, connections, files,
threads and memory, after the start, after each calls the next one (ring), after all call worker 0 (star),
after all call all (mesh), and in the shutdown; of a dynamic group, in each join and leave. A group that
does not form, or fails later, is reported with the reason, and the rest is counted. The status of `count`
is 1 if one is not what the simulation says.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from carrying import carry
from comparing import differences
from costs import measure
from counting import Count, count_dynamic, count_static, template
from protocols import PROTOCOLS
from simulated import Costs

from rpc_backends_bench.machine import describe
from rpc_backends_bench.subjects import parse

SUBJECTS = (
    "ZEROMQ",
    "ZEROMQ:unix_sockets=false",
    "TENSORPIPE",
    'TENSORPIPE:_transports=["uv"]',
    "TENSORPIPE@torch",
)
SIZES = (2, 4, 8, 16, 32, 64)
CARRIED = ("ZEROMQ", "TENSORPIPE", "TENSORPIPE@torch")
CARRIED_SIZES = (*SIZES, 128, 256, 512, 1024, 2048, 4096)


def count(arguments: argparse.Namespace) -> int:
    """Count real groups, and say what is not as it is simulated."""
    subjects = [parse(text) for text in arguments.subject or SUBJECTS]
    found = _read(arguments.json) if arguments.json and arguments.json.exists() else {}
    wrong = 0
    for subject in subjects:
        for size in arguments.sizes:
            found[subject.label, size, False] = _shown(count_static(subject, size))
        if size := arguments.dynamic:
            found[subject.label, size, True] = _shown(count_dynamic(subject, size))
        if arguments.json:
            whole = {"machine": describe(), "counts": [one.to_json() for one in found.values()]}
            arguments.json.write_text(json.dumps(whole))
    for one in found.values():
        for text in differences(one) if one.subject in PROTOCOLS else ():
            wrong += 1
            print(text)
    return int(wrong > 0)


def simulate(arguments: argparse.Namespace) -> int:
    """Measure what requests and calls cost here, and carry the protocols to larger groups."""
    costs = Costs() if arguments.assumed else measure(template(False))
    print(costs, file=sys.stderr)
    carried = {}
    for subject in CARRIED:
        carried[subject] = carry(subject, arguments.sizes, costs)
        print(f"{subject}: carried to {max(arguments.sizes)}", file=sys.stderr)
    whole = {"machine": describe(), "costs": asdict(costs), "carried": carried}
    arguments.json.write_text(json.dumps(whole, indent=1))
    return 0


def draw(arguments: argparse.Namespace) -> int:
    """Draw the plots of `docs/explanation/scale.md`, and print its tables."""
    import drawing

    counts = list(_read(arguments.counts).values())
    whole = json.loads(arguments.carried.read_text())
    drawing.write(counts, whole, arguments.out)
    print(drawing.tables(counts, whole))
    return 0


def _read(file: Path) -> dict[tuple[str, int, bool], Count]:
    counts = [Count.from_json(one) for one in json.loads(file.read_text())["counts"]]
    return {(one.subject, one.size, one.dynamic): one for one in counts}


def _shown(one: Count) -> Count:
    kind = "dynamic" if one.dynamic else "static"
    print(f"{one.subject}, {kind}, {one.size} workers: {one.failed or 'whole'}", file=sys.stderr)
    for text in one.left_out:
        print(f"    left out: {text}", file=sys.stderr)
    return one


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("count", help="count real groups")
    one.add_argument("subject", nargs="*", help="NAME[@torch][:option=value,...]")
    one.add_argument("--sizes", type=_sizes, default=SIZES)
    one.add_argument("--dynamic", type=int, default=32, help="size of dynamic groups; 0 for none")
    one.add_argument("--json", type=Path, help="write to, and add to if it is there")
    one.set_defaults(run=count)
    two = commands.add_parser("simulate", help="carry the protocols to thousands of workers")
    two.add_argument("--sizes", type=_sizes, default=CARRIED_SIZES)
    two.add_argument("--assumed", action="store_true", help="measure no costs; take the usual ones")
    two.add_argument("--json", type=Path, required=True)
    two.set_defaults(run=simulate)
    three = commands.add_parser("draw", help="plots and tables, of what the other two have written")
    three.add_argument("counts", type=Path)
    three.add_argument("carried", type=Path)
    three.add_argument("--out", type=Path, required=True, help="a folder for the plots")
    three.set_defaults(run=draw)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
