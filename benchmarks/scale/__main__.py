"""Count what groups of growing size do.

python benchmarks/scale --json counts.json       # real groups of 2 ... 64: half an hour

For each worker it counts requests to the store (on the wire, by kind), RPC calls, connections, files,
threads and memory: after the start, after each worker calls the next one (ring), after all call worker 0
(star), after all call all (mesh), and in the shutdown; in a dynamic group, in each join and leave. If a
group does not form, or fails later, it reports the reason and counts the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from counting import Count, count_dynamic, count_static

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


def main() -> None:
    """Count real groups, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", nargs="*", help="NAME[@torch][:option=value,...]")
    parser.add_argument(
        "--sizes", type=_sizes, default=SIZES, help="sizes of static groups (2,4,8,16,32,64)"
    )
    parser.add_argument(
        "--dynamic", type=int, default=32, help="size of the dynamic group; 0 for none (32)"
    )
    parser.add_argument(
        "--json", type=Path, required=True, help="a file to write; its earlier counts are kept"
    )
    given = parser.parse_args()
    counts = _read(given.json) if given.json.exists() else {}
    for subject in [parse(text) for text in given.subject or SUBJECTS]:
        for size in given.sizes:
            counts[subject.label, size, False] = _shown(count_static(subject, size))
        if size := given.dynamic:
            counts[subject.label, size, True] = _shown(count_dynamic(subject, size))
        whole = {"machine": describe(), "counts": [count.to_json() for count in counts.values()]}
        given.json.write_text(json.dumps(whole))


def _read(file: Path) -> dict[tuple[str, int, bool], Count]:
    counts = [Count.from_json(count) for count in json.loads(file.read_text())["counts"]]
    return {(count.subject, count.size, count.dynamic): count for count in counts}


def _shown(count: Count) -> Count:
    kind = "dynamic" if count.dynamic else "static"
    state = count.failed or "complete"
    print(f"{count.subject}, {kind}, {count.size} workers: {state}", file=sys.stderr)
    for text in count.left_out:
        print(f"    not measured: {text}", file=sys.stderr)
    return count


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
