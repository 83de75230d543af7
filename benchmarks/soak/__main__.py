"""A soak: workers call each other in all ways for an hour, and nothing of them may grow.

    python benchmarks/soak --backend ZEROMQ --minutes 60 --json soak.json

Each worker's memory (RSS), open files and threads are sampled; at the end the median of the last third of
the run is compared with that of the middle third (`judge.py` has the tolerances). The status is 1 if one
has grown, if a call gave what it should not have, or if the group did not shut down; 0 if all is well.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import traffic
from judge import TOLERANCES, Verdict, judge

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.subjects import parse
from rpc_backends_cli.processes import Template, WorkerError, Workers

#: Seconds that starting and stopping may take, and the last calls to end.
_PATIENCE = 3 * traffic.PATIENCE
_PROGRESS_EVERY = 10.0  # seconds

Samples = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Plan:
    """What to run; see the options of the command."""

    backend: str
    minutes: float
    workers: int
    threads: int
    worker_threads: int
    interval: float
    seed: int
    leak: list[str]

    @property
    def seconds(self) -> float:
        """How long the calls go on."""
        return self.minutes * 60


def sample(pid: int) -> dict[str, float]:
    """Return a process's memory (MiB), open files and threads."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "files": float(len(list(Path(f"/proc/{pid}/fd").iterdir()))),
        "threads": float(status["Threads"]),
    }


def soak(plan: Plan, progress: Callable[[str], None]) -> tuple[Samples, dict[str, Any]]:
    """Run it, and return the samples by worker and figure, and what the workers say.

    :raises WorkerError: a worker died, hung or did not shut down.
    """
    # What the traffic is, is found by its name in every worker.
    template = Template(path=[str(Path(__file__).parent)])
    samples: Samples = {}
    with (
        tempfile.TemporaryDirectory(prefix="rpc-soak-") as folder,
        Workers(plan.workers, seconds=plan.seconds + _PATIENCE, template=template) as workers,
    ):
        subject = parse(plan.backend)
        options = {"num_worker_threads": plan.worker_threads, **subject.options}
        url = f"file://{folder}/store"
        workers.run(worker_tasks.join, replace(subject, options=options), url, plan.workers)
        steps = {
            worker: worker.start(
                traffic.work, plan.seconds, plan.interval, plan.threads, plan.seed, plan.leak
            )
            for worker in workers
        }
        begin = shown = time.monotonic()
        while True:
            calls = [step.news() for step in steps.values()]
            if None in calls:
                break
            for worker in steps:
                for figure, value in sample(worker.pid).items():
                    samples.setdefault(worker.name, {}).setdefault(figure, []).append(value)
            if time.monotonic() - shown >= _PROGRESS_EVERY:
                shown = time.monotonic()
                progress(progress_line(plan, shown - begin, sum(calls), samples))
        said = {worker.name: step.result() for worker, step in steps.items()}
        workers.run(worker_tasks.leave)
        statuses = [worker.end() for worker in workers]
        if any(statuses):
            raise WorkerError(f"workers ended with status {statuses}")
    return samples, said


def progress_line(plan: Plan, seconds: float, calls: int, samples: Samples) -> str:
    """Return where the run is."""
    now = {
        figure: "/".join(f"{figures[figure][-1]:.0f}" for figures in samples.values())
        for figure in TOLERANCES
    }
    return (
        f"{seconds / 60:.1f} of {plan.minutes:g} min, {calls} calls; RSS {now['rss_mib']} MiB, "
        f"files {now['files']}, threads {now['threads']}"
    )


def verdicts_of(samples: Samples) -> list[Verdict]:
    """Judge every figure of every worker."""
    return [
        judge(worker, figure, values)
        for worker, figures in samples.items()
        for figure, values in figures.items()
    ]


def parsed() -> tuple[Plan, Path | None]:
    """Return what the command line says: the plan, and where to write JSON."""
    parser = argparse.ArgumentParser(
        prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="ZEROMQ", help="NAME[:OPTION=VALUE,...] (ZEROMQ)")
    parser.add_argument("--minutes", type=float, default=60, help="how long the calls go on (60)")
    parser.add_argument("--workers", type=int, default=3, help="in the group (3)")
    parser.add_argument("--threads", type=int, default=3, help="that call, in each (3)")
    parser.add_argument(
        "--worker-threads", type=int, default=16, help="that execute requests, in each (16)"
    )
    parser.add_argument("--interval", type=float, default=1, help="seconds between samples (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the calls that are drawn (0)")
    parser.add_argument("--json", type=Path, help="write samples, calls and verdicts to a file")
    parser.add_argument(
        "--leak",
        action="append",
        default=[],
        choices=["memory", "files", "threads"],
        help="leak some of this with each sample, to see that it is found; may be repeated",
    )
    arguments = vars(parser.parse_args())
    where = arguments.pop("json")
    plan = Plan(**arguments)
    if plan.workers < 2 or plan.threads < 1 or plan.interval <= 0:
        parser.error("it takes 2 workers, 1 thread and a positive interval at least")
    if plan.seconds < 9 * plan.interval:
        parser.error("it takes 9 samples at least: more --minutes, or a shorter --interval")
    return plan, where


def main() -> int:
    """Run, judge and tell; return the exit status."""
    plan, where = parsed()
    try:
        samples, said = soak(plan, lambda line: print(line, file=sys.stderr, flush=True))
    except WorkerError as error:
        print(f"FAILED: {error}")
        return 1
    verdicts = verdicts_of(samples)
    counts: collections.Counter[str] = collections.Counter()
    for one in said.values():
        counts.update(one["counts"])
    wrong = [f"{name}: {text}" for name, one in said.items() for text in one["wrong"]]
    if where is not None:
        report = {
            "plan": asdict(plan),
            "calls": dict(counts),
            "wrong": wrong,
            "verdicts": [verdict.as_dict() for verdict in verdicts],
            "samples": samples,
        }
        where.write_text(json.dumps(report, indent=1))
    print(
        f"{plan.backend}, {plan.workers} workers, {plan.threads} threads each, {plan.minutes:g} min"
    )
    for name, number in sorted(counts.items()):
        print(f"  {name}: {number}")
    print("medians of the first, the middle and the last third of the run:")
    for verdict in verdicts:
        print(f"  {verdict}")
    for text in wrong:
        print(f"  WRONG {text}")
    good = not counts["wrong"] and all(verdict.flat for verdict in verdicts)
    print("all is well" if good else "FAILED: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
