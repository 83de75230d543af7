"""Count what groups of growing size do, and compare that with a simulation.

python benchmarks/scale count --json counts.json       # real groups of 2 ... 64: half an hour
python benchmarks/scale simulate --json carried.json   # the same protocols, up to 16384 workers
python benchmarks/scale read                           # a worker's own time to read the group
python benchmarks/scale draw counts.json carried.json --out docs/explanation/scale

For each worker `count` counts requests to the store (on the wire, by kind), RPC calls, connections,
files, threads and memory: after the start, after each worker calls the next one (ring), after all call
worker 0 (star), after all call all (mesh), and in the shutdown; in a dynamic group, in each join and
leave. If a group does not form, or fails later, `count` reports the reason and counts the rest. Its exit
status is 1 if a group differs from the simulation.
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
CARRIED_SIZES = (*SIZES, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

READ_SIZES = (64, 1024, 4096, 16384)


def count(arguments: argparse.Namespace) -> int:
    """Count real groups, and print the differences from the simulation."""
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
    """Measure the costs of requests and calls on this machine, and simulate larger groups."""
    costs = Costs() if arguments.assumed else measure(template(False))
    print(costs, file=sys.stderr)
    carried = {}
    for subject in CARRIED:
        carried[subject] = carry(subject, arguments.sizes, costs)
        print(f"{subject}: simulated up to {max(arguments.sizes)} workers", file=sys.stderr)
    whole = {"machine": describe(), "costs": asdict(costs), "carried": carried}
    arguments.json.write_text(json.dumps(whole, indent=1))
    return 0


def read(arguments: argparse.Namespace) -> int:
    """Measure the time of one worker of ZEROMQ to read what the others have written."""
    from reading import table

    print(table(arguments.sizes))
    return 0


def draw(arguments: argparse.Namespace) -> int:
    """Draw the plots of `docs/explanation/scale.md` and print its tables."""
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
    print(f"{one.subject}, {kind}, {one.size} workers: {one.failed or 'complete'}", file=sys.stderr)
    for text in one.left_out:
        print(f"    not measured: {text}", file=sys.stderr)
    return one


def main() -> int:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("count", help="count real groups")
    one.add_argument("subject", nargs="*", help="NAME[@torch][:option=value,...]")
    one.add_argument(
        "--sizes", type=_sizes, default=SIZES, help="sizes of static groups (2,4,8,16,32,64)"
    )
    one.add_argument(
        "--dynamic", type=int, default=32, help="size of the dynamic group; 0 for none (32)"
    )
    one.add_argument(
        "--json", type=Path, help="a file to write; counts of an existing file are kept"
    )
    one.set_defaults(run=count)
    two = commands.add_parser("simulate", help="simulate the protocols with thousands of workers")
    two.add_argument("--sizes", type=_sizes, default=CARRIED_SIZES, help="sizes (2,4,...,16384)")
    two.add_argument(
        "--assumed", action="store_true", help="measure no costs; use those in simulated.py"
    )
    two.add_argument("--json", type=Path, required=True, help="the file to write")
    two.set_defaults(run=simulate)
    three = commands.add_parser(
        "draw", help="draw what count and simulate wrote, as plots and tables"
    )
    three.add_argument("counts", type=Path, help="the file that `count` wrote")
    three.add_argument("carried", type=Path, help="the file that `simulate` wrote")
    three.add_argument("--out", type=Path, required=True, help="a folder for the plots")
    three.set_defaults(run=draw)
    four = commands.add_parser("read", help="measure a worker's time to read its group")
    four.add_argument("--sizes", type=_sizes, default=READ_SIZES, help="sizes (64,...,16384)")
    four.set_defaults(run=read)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
