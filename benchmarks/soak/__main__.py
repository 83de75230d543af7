"""Soak test: workers call each other in many ways for an hour; their memory must not grow.

    python benchmarks/soak --backend ZEROMQ --minutes 60 --json soak.json

Each worker's memory (RSS), open files and threads are sampled. At the end, the median of the last third
of the run is compared with that of the middle third (`judge.py` has the tolerances). The exit status is 1
if a figure has grown, a call had a wrong result, or the group did not shut down; otherwise it is 0.

    python benchmarks/soak --peers 4 --minutes 10

This adds four peers, which the workers call too. Peers are killed, suspended and resumed at random, and
killed ones are replaced. Every call of a worker must end within its timeout, with the right result or an
error, and no worker may end. Peers also leave and join again, some of them under their former names.
With ``--static`` the group is static, so no worker leaves or joins: the peers are killed one after the
other, and the workers continue. ``--most-mib`` limits the memory of a worker at the end.

With churn, use ZEROMQ or UCX. TENSORPIPE does not pass: torch's agent keeps the connections to former
peers open and the RRefs of failed calls in memory, and TensorPipe may end a process that reads from a
lost peer.

Without churn, the allocator of the C library keeps little of what is freed (`ALLOCATOR`): with its
defaults a worker grows for many minutes although it uses no more memory, and a small leak would not show.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import traffic
from churn import Churn, start_peer
from judge import CHURNED, TOLERANCES, Tolerance, Verdict, judge

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.subjects import Subject, parse
from rpc_backends_processes import Step, Template, WorkerError, Workers, environ

#: How long start, shutdown and the last calls may take together.
_START_STOP_TIMEOUT_S = 3 * traffic.CALL_END_TIMEOUT_S
_PROGRESS_INTERVAL_S = 10.0
#: Variables of glibc's malloc. Once a program has freed a large block, blocks of up to that size come
#: from arenas, where other blocks keep them from being returned; a fixed threshold prevents that. There
#: are up to eight arenas a core, which fill one after the other.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10), "MALLOC_ARENA_MAX": "2"}
#: How many characters of an error are shown. The rest is output of calls that raise on purpose.
_MAX_ERROR_TEXT = 4000

Samples = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Plan:
    """The settings of a run; see the options of the command."""

    backend: str
    minutes: float
    workers: int
    threads: int
    worker_threads: int
    interval: float
    seed: int
    leak: list[str]
    peers: int
    deaths: float
    static: bool
    most_mib: float

    @property
    def seconds(self) -> float:
        """How long the workers make calls."""
        return self.minutes * 60


def sample(pid: int) -> dict[str, float]:
    """Return a process's memory (MiB), open files and threads; empty if it has ended."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    if "VmRSS" not in status:
        return {}
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "files": float(len(list(Path(f"/proc/{pid}/fd").iterdir()))),
        "threads": float(status["Threads"]),
    }


def soak(plan: Plan, progress: Callable[[str], None]) -> tuple[Samples, dict[str, Any]]:
    """Run the soak test; return the samples by worker and figure, and the workers' reports.

    :raises WorkerError: a worker ended early, hung or did not shut down.
    """
    # So that every worker can import the modules of this folder by their names.
    template = Template(
        path=[str(Path(__file__).parent)],
        preload=["churn", "traffic"],
        variables={**({} if plan.peers else ALLOCATOR), **environ()},
    )
    samples: Samples = {}
    with (
        tempfile.TemporaryDirectory(prefix="rpc-soak-") as folder,
        Workers(
            plan.workers, seconds=plan.seconds + _START_STOP_TIMEOUT_S, template=template
        ) as workers,
        contextlib.closing(churn_of(plan, template, folder)) as churn,
    ):
        subject, url = subject_of(plan), url_of(folder)
        for _ in range(plan.peers):
            churn.add()
        workers.run(worker_tasks.join, subject, url, world_size(plan))
        churn.wait_until_joined()
        steps = {
            worker: worker.start(
                traffic.work,
                *(plan.seconds, plan.interval, plan.threads, plan.seed, plan.leak),
                churn.list_file if plan.peers else None,
            )
            for worker in workers
        }
        begin = shown = time.monotonic()
        while True:
            calls = [step.news() for step in steps.values()]
            if None in calls:
                break
            churn.tick()
            for worker in steps:
                for figure, value in sample(worker.pid).items():
                    samples.setdefault(worker.name, {}).setdefault(figure, []).append(value)
            if time.monotonic() - shown >= _PROGRESS_INTERVAL_S:
                shown = time.monotonic()
                progress(progress_line(plan, shown - begin, sum(calls), samples))
        reports = {worker.name: step.result() for worker, step in steps.items()}
        churn.close()
        if plan.peers:
            reports["peers"] = {"counts": churn.counts, "wrong": churn.wrong, "longest": 0.0}
        # A graceful shutdown would wait for the peers that were killed.
        workers.run(worker_tasks.leave, graceful=not plan.peers)
        statuses = [worker.end() for worker in workers]
        if any(statuses):
            raise WorkerError(f"workers ended with status {statuses}")
    return samples, reports


def subject_of(plan: Plan) -> Subject:
    """Return the backend with its options."""
    subject = parse(plan.backend)
    options: dict[str, Any] = {"num_worker_threads": plan.worker_threads}
    if plan.peers:
        options["rpc_timeout"] = traffic.CALL_TIMEOUT_S
    return replace(subject, options={**options, **subject.options})


def url_of(folder: str) -> str:
    """Return the init method of the group."""
    return f"file://{folder}/store"


def world_size(plan: Plan) -> int | None:
    """Return the size of a static group; None for a dynamic one."""
    return None if plan.peers and not plan.static else plan.workers + plan.peers


def churn_of(plan: Plan, template: Template, folder: str) -> Churn:
    """Return the churn of a run; no peer has been started yet."""
    names = [f"worker{index}" for index in range(plan.workers)]

    def start(number: int) -> tuple[Workers, Step]:
        arguments = (subject_of(plan), url_of(folder), world_size(plan), names, plan.seed * 1000)
        return start_peer(template, plan.seconds + _START_STOP_TIMEOUT_S, number, *arguments)

    # In a static group the last peer is killed after a quarter of the time or so. Then workers call
    # themselves more, and the middle third of the run would not be comparable with the last.
    ticks = plan.deaths if not plan.static else plan.seconds / 4 / (plan.peers + 1)
    return Churn(
        start,
        replaced=not plan.static,
        deaths=max(1.0, ticks / plan.interval),
        chance=random.Random(plan.seed),
        list_file=Path(folder) / "peers",
        next=plan.workers,
    )


def progress_line(plan: Plan, seconds: float, calls: int, samples: Samples) -> str:
    """Return a line about the progress of the run."""
    now = {
        figure: "/".join(f"{figures[figure][-1]:.0f}" for figures in samples.values())
        for figure in TOLERANCES
    }
    return (
        f"{seconds / 60:.1f} of {plan.minutes:g} min, {calls} calls; RSS {now['rss_mib']} MiB, "
        f"files {now['files']}, threads {now['threads']}"
    )


def shortened(text: str) -> str:
    """Return the first line of an error, and then the reason of a crash or else the end of the text."""
    first, _, rest = text.partition("\n")
    reason = rest.rfind("terminate called")
    return f"{first}\n{rest[reason:][:_MAX_ERROR_TEXT] if reason >= 0 else rest[-_MAX_ERROR_TEXT:]}"


def verdicts_of(samples: Samples, tolerances: Mapping[str, Tolerance]) -> list[Verdict]:
    """Return a verdict for every figure of every worker."""
    return [
        judge(worker, figure, values, tolerances)
        for worker, figures in samples.items()
        for figure, values in figures.items()
    ]


def parsed() -> tuple[Plan, Path | None]:
    """Parse the command line; return the plan, and the file for JSON."""
    parser = argparse.ArgumentParser(
        prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="ZEROMQ", help="NAME[:OPTION=VALUE,...] (ZEROMQ)")
    parser.add_argument(
        "--minutes", type=float, default=60, help="how long the workers make calls (60)"
    )
    parser.add_argument("--workers", type=int, default=3, help="number of workers (3)")
    parser.add_argument("--threads", type=int, default=3, help="calling threads of a worker (3)")
    parser.add_argument(
        "--worker-threads",
        type=int,
        default=16,
        help="threads of a worker that execute requests (16)",
    )
    parser.add_argument("--interval", type=float, default=1, help="seconds between samples (1)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random choice of calls (0)"
    )
    parser.add_argument("--json", type=Path, help="write samples, calls and verdicts to a file")
    parser.add_argument(
        "--leak",
        action="append",
        default=[],
        choices=["memory", "files", "threads"],
        help="leak this with each sample, to check that the test finds it; may be repeated",
    )
    parser.add_argument(
        "--peers", type=int, default=0, help="number of peers, which are killed at random (0)"
    )
    parser.add_argument(
        "--deaths", type=float, default=2, help="mean seconds between two kills (2)"
    )
    parser.add_argument(
        "--static", action="store_true", help="use a static group; killed peers are not replaced"
    )
    parser.add_argument(
        "--most-mib",
        type=float,
        default=math.inf,
        help="how much memory (RSS, in MiB) a worker may have in the last third of the run (no limit)",
    )
    arguments = vars(parser.parse_args())
    where = arguments.pop("json")
    plan = Plan(**arguments)
    if plan.workers + plan.peers < 2 or plan.workers < 1 or plan.threads < 1 or plan.interval <= 0:
        parser.error(
            "needs at least two workers, or one worker and one peer; one thread; a positive --interval"
        )
    if plan.peers < 0 or plan.deaths <= 0 or (plan.static and not plan.peers):
        parser.error("--peers must be 0 or more, --deaths above 0, and --static needs --peers")
    if plan.seconds < 9 * plan.interval:
        parser.error("needs at least 9 samples: use more --minutes or a shorter --interval")
    return plan, where


def main() -> int:
    """Run, judge and print; return the exit status."""
    plan, where = parsed()
    try:
        samples, reports = soak(plan, lambda line: print(line, file=sys.stderr, flush=True))
    except WorkerError as error:
        print(f"FAILED: {shortened(str(error))}")
        return 1
    tolerances = dict(CHURNED if plan.peers else TOLERANCES)
    tolerances["rss_mib"] = replace(tolerances["rss_mib"], most=plan.most_mib)
    verdicts = verdicts_of(samples, tolerances)
    counts: collections.Counter[str] = collections.Counter()
    for told in reports.values():
        counts.update(told["counts"])
    wrong = [f"{name}: {text}" for name, told in reports.items() for text in told["wrong"]]
    if where is not None:
        report = {
            "plan": {
                **asdict(plan),
                "most_mib": None if math.isinf(plan.most_mib) else plan.most_mib,
            },
            "calls": dict(counts),
            "wrong": wrong,
            "longest": max(told["longest"] for told in reports.values()),
            "verdicts": [verdict.as_dict() for verdict in verdicts],
            "samples": samples,
        }
        where.write_text(json.dumps(report, indent=1))
    print(
        f"{plan.backend}, {plan.workers} workers, {plan.threads} threads each, {plan.minutes:g} min"
    )
    for name, number in sorted(counts.items()):
        print(f"  {name}: {number}")
    if plan.peers:
        longest = max(told["longest"] for told in reports.values())
        print(
            f"  the longest call took {longest:g} s; a call times out after "
            f"{traffic.CALL_TIMEOUT_S:g} s"
        )
    print("medians of the first, middle and last third of the run:")
    for verdict in verdicts:
        print(f"  {verdict}")
    for text in wrong:
        print(f"  WRONG {text}")
    good = not wrong and all(verdict.is_good for verdict in verdicts)
    print("passed" if good else "FAILED: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
