"""Compare the guided search of `rpc-backends faults explore` with random injection.

Both search each program with a planted bug (plugins/faults/tests/planted/catalogue.py) with the same
seeds, kinds and time, several runs at the same time. Random injection lets one kind act on any message,
with a probability of 2, 5, 10 or 20 %; each run has another one. A search ends when the planted bug was
found, and with the first seed also shrunk and confirmed. Other failures of the program do not count.

The number of runs until the bug is found hardly depends on the load of the machine; the time does.

    python benchmarks/explore --seeds 3 --json FILE --markdown FILE
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from rpc_backends_faults.explore import invariants
from rpc_backends_faults.explore.findings import Failure
from rpc_backends_faults.explore.plan import Plan
from rpc_backends_faults.explore.processes import Program
from rpc_backends_faults.explore.schedules import Strategy
from rpc_backends_faults.explore.search import Search

_PLANTED = Path(__file__).parents[2] / "plugins/faults/tests/planted/catalogue.py"


def _programs() -> tuple[Any, ...]:
    spec = importlib.util.spec_from_file_location("catalogue", _PLANTED)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    programs: tuple[Any, ...] = module.PROGRAMS
    return programs


@dataclass
class Result:
    """A search.

    :ivar runs: the runs of schedules until the bug was found, or all if it was not.
    :ivar seconds: the time until then.
    :ivar faults: the faults of the shrunk schedule; None if it was not shrunk.
    :ivar failed: how many of the ``of`` runs with it failed.
    :ivar rules: its rule file.
    """

    program: str
    strategy: str
    seed: int
    is_found: bool = False
    runs: int = 0
    seconds: float = 0.0
    faults: int | None = None
    failed: int = 0
    of: int = 0
    rules: str = ""
    other_failures: int = 0


class _DoneError(Exception):
    """The search has found what it should find."""


def search(planted: Any, strategy: Strategy, seed: int, args: argparse.Namespace) -> Result:
    """Search until the planted bug is found, or the time is over."""
    shrinks = args.shrink and seed == args.first_seed

    def shows(failure: Failure) -> bool:
        return bool(failure.cause.kind == planted.shown)

    def look(search: Search) -> None:
        for failure in filter(shows, search.findings.failures):
            search.stop_exploring()
            if failure.shrunk.complete if shrinks else failure.shrunk.again:
                raise _DoneError

    with tempfile.TemporaryDirectory(prefix="explore-") as folder:
        out = Path(folder)
        plan = Plan(
            Program((sys.executable, str(planted.program)), planted.hang, 600.0),
            out,
            planted.kinds,
            seed=seed,
            strategy=strategy,
            seconds=args.budget,
            jobs=args.jobs,
            confirmations=args.confirm,
            invariants=tuple(invariants.load(planted.invariants)),
        )
        search = Search(plan, look)
        try:
            search.run()
        except _DoneError:
            pass
        except ValueError as error:
            print(f"{planted.name}: {error}", file=sys.stderr)
        findings = search.findings
        result = Result(planted.name, strategy, seed, False, findings.explored, findings.seconds)
        failures = [failure for failure in filter(shows, findings.failures) if failure.shrunk.again]
        result.other_failures = len(findings.failures) - len(failures)
        if failures:
            first = failures[0]
            result.is_found, result.runs, result.seconds = True, first.after, first.seconds
            result.rules = first.shrunk.schedule.rule_file()
            if shrinks and first.shrunk.complete:
                result.faults = len(first.shrunk.schedule.faults)
                result.failed, result.of = first.shrunk.failed, first.shrunk.of
    return result


def markdown(results: list[Result]) -> str:
    """Return the results as a table."""
    names = list(dict.fromkeys(result.program for result in results))
    strategies = list(dict.fromkeys(result.strategy for result in results))
    columns = ("found", "runs", "seconds", "faults", "repeats")
    head = [f"{strategy}: {column}" for strategy in strategies for column in columns]
    lines = [f"| bug | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for name in names:
        cells = [name]
        for strategy in strategies:
            rows = [r for r in results if (r.program, r.strategy) == (name, strategy)]
            cells += _cells(rows)
        lines.append(f"| {' | '.join(cells)} |")
    for strategy in strategies:
        rows = [r for r in results if r.strategy == strategy]
        total = sum(row.runs for row in rows)
        lines += ["", f"{strategy}: {sum(r.is_found for r in rows)} of {len(rows)}, {total} runs"]
    return "\n".join(lines) + "\n"


def _cells(rows: list[Result]) -> list[str]:
    if not rows:
        return ["", "", "", "", ""]
    shrunk = next((row for row in rows if row.faults is not None), None)
    return [
        f"{sum(row.is_found for row in rows)} of {len(rows)}",
        _spread([row.runs for row in rows]),
        _spread([round(row.seconds) for row in rows]),
        str(shrunk.faults) if shrunk else "",
        f"{shrunk.failed} of {shrunk.of}" if shrunk else "",
    ]


def _spread(values: list[int]) -> str:
    middle = f"{statistics.median(values):g}"
    return middle if len(values) == 1 else f"{middle} ({min(values)} to {max(values)})"


def main() -> None:
    """Run all searches; write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for each search")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--confirm", type=int, default=10)
    parser.add_argument("--strategy", choices=get_args(Strategy), action="append")
    parser.add_argument("--program", action="append", help="the name of a bug; default: all")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--minutes", type=float, help="start no search after so long")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    begin = time.monotonic()
    results: list[Result] = []
    programs = [
        program for program in _programs() if not args.program or program.name in args.program
    ]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for planted in programs:
            for strategy in args.strategy or get_args(Strategy):
                if args.minutes and time.monotonic() - begin > 60 * args.minutes:
                    continue
                result = search(planted, strategy, seed, args)
                results.append(result)
                print(
                    f"{planted.name}, {strategy}, seed {seed}: "
                    f"{'found' if result.is_found else 'NOT FOUND'} after {result.runs} runs, "
                    f"{result.seconds:.0f} s; {result.faults} faults; "
                    f"{result.failed} of {result.of}; {time.monotonic() - begin:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if args.json:
                    data = [asdict(result) for result in results]
                    args.json.write_text(json.dumps(data, indent=1) + "\n")
                if args.markdown:
                    args.markdown.write_text(markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
