"""Count what backends do as groups grow, and compare it with what the simulation says.

    python benchmarks/scale count --json counts.json       # real groups of 2 ... 64, minutes
    python benchmarks/scale store --json store.json        # what a request costs torch's TCP store
    python benchmarks/scale simulate --json carried.json   # the same protocols, to thousands of workers
    python benchmarks/scale draw docs                      # plots and tables, of these three files

Counted of each worker: requests to the store (on the wire, by kind), RPC calls, connections, files,
threads and memory, after the start, after each calls the next one (ring), after all call worker 0 (star),
after all call all (mesh), and in the shutdown; of a dynamic group, in each join and leave. A group that
does not form, or fails later, is reported with the reason, and the rest is counted. The status is 1 if a
count is not what the simulation says.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from comparing import differences
from counting import Count, count_dynamic, count_static
from protocols import PROTOCOLS

from rpc_backends_core.bench.machine import describe
from rpc_backends_core.bench.subjects import parse

SUBJECTS = (
    "ZEROMQ",
    "ZEROMQ:unix_sockets=false",
    "TENSORPIPE",
    'TENSORPIPE:_transports=["uv"]',
    "TENSORPIPE@torch",
)
SIZES = (2, 4, 8, 16, 32, 64)


def count(arguments: argparse.Namespace) -> int:
    """Count real groups, and say what is not as it is simulated."""
    subjects = [parse(text) for text in arguments.subject or SUBJECTS]
    found = _read(arguments.json) if arguments.json and arguments.json.exists() else {}
    wrong = 0
    for subject in subjects:
        for size in arguments.sizes:
            found[subject.label, size, False] = _shown(count_static(subject, size))
        size = max(arguments.sizes)
        found[subject.label, size, True] = _shown(count_dynamic(subject, size))
        if arguments.json:
            whole = {"machine": describe(), "counts": [one.to_json() for one in found.values()]}
            arguments.json.write_text(json.dumps(whole))
    for one in found.values():
        for text in differences(one) if one.subject in PROTOCOLS else ():
            wrong += 1
            print(text)
    return int(wrong > 0)


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
    one.add_argument("--json", type=Path, help="write to, and add to if it is there")
    one.set_defaults(run=count)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
