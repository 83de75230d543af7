"""A soak: workers call each other in all ways for an hour, and nothing of them may grow.

    python benchmarks/soak --backend ZEROMQ --minutes 60 --json soak.json

Each worker's memory (RSS), open files and threads are sampled; at the end the median of the last third of
the run is compared with that of the middle third (`judge.py` has the tolerances). The status is 1 if one
has grown, if a call gave what it should not have, or if the group did not shut down; 0 if all is well.

    python benchmarks/soak --peers 4 --minutes 10

Besides the workers, which are watched as above, four peers are called that die: killed, suspended and
resumed at random, and replaced by new ones. Every call of the workers must end within its timeout, with
the right result or an error, and no worker may end. With ``--static`` the group is a static one, which
nobody joins later: the peers die one after the other, and the workers go on.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
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
from rpc_backends_cli.processes import Step, Template, WorkerError, Workers

#: Seconds that starting and stopping may take, and the last calls to end.
_PATIENCE = 3 * traffic.PATIENCE
_PROGRESS_EVERY = 10.0  # seconds
#: Letters of an error that are shown: workers print the traceback of every call that raises on purpose.
_SHOWN = 4000

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
    peers: int
    deaths: float
    static: bool

    @property
    def seconds(self) -> float:
        """How long the calls go on."""
        return self.minutes * 60


def sample(pid: int) -> dict[str, float]:
    """Return a process's memory (MiB), open files and threads; nothing of one that has ended."""
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
    """Run it, and return the samples by worker and figure, and what the workers say.

    :raises WorkerError: a worker died, hung or did not shut down.
    """
    # Every worker finds the modules of this folder by their names, whichever call needs them first.
    template = Template(path=[str(Path(__file__).parent)], preload=["churn", "traffic"])
    samples: Samples = {}
    with (
        tempfile.TemporaryDirectory(prefix="rpc-soak-") as folder,
        Workers(plan.workers, seconds=plan.seconds + _PATIENCE, template=template) as workers,
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
                churn.list if plan.peers else None,
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
            if time.monotonic() - shown >= _PROGRESS_EVERY:
                shown = time.monotonic()
                progress(progress_line(plan, shown - begin, sum(calls), samples))
        said = {worker.name: step.result() for worker, step in steps.items()}
        churn.close()
        if plan.peers:
            said["peers"] = {"counts": churn.counts, "wrong": churn.wrong, "longest": 0.0}
        # Those that were killed take no part in leaving together.
        workers.run(worker_tasks.leave, graceful=not plan.peers)
        statuses = [worker.end() for worker in workers]
        if any(statuses):
            raise WorkerError(f"workers ended with status {statuses}")
    return samples, said


def subject_of(plan: Plan) -> Subject:
    """Return the backend with its options."""
    subject = parse(plan.backend)
    options: dict[str, Any] = {"num_worker_threads": plan.worker_threads}
    if plan.peers:
        options["rpc_timeout"] = traffic.CALL_TIMEOUT_S
    return replace(subject, options={**options, **subject.options})


def url_of(folder: str) -> str:
    """Return where the workers meet."""
    return f"file://{folder}/store"


def world_size(plan: Plan) -> int | None:
    """Return the size of the group, None for a dynamic one."""
    return None if plan.peers and not plan.static else plan.workers + plan.peers


def churn_of(plan: Plan, template: Template, folder: str) -> Churn:
    """Return the peers of a run, none of which has been started."""
    names = [f"worker{index}" for index in range(plan.workers)]

    def start(number: int) -> tuple[Workers, Step]:
        arguments = (subject_of(plan), url_of(folder), world_size(plan), names, plan.seed * 1000)
        return start_peer(template, plan.seconds + _PATIENCE, number, *arguments)

    # In a static group the last peer dies when half of the time is over.
    ticks = plan.deaths if not plan.static else plan.seconds / 2 / (plan.peers + 1)
    return Churn(
        start,
        replaced=not plan.static,
        deaths=max(1.0, ticks / plan.interval),
        chance=random.Random(plan.seed),
        list=Path(folder) / "peers",
        next=plan.workers,
    )


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


def shortened(text: str) -> str:
    """Return the first line of an error, and of the rest why a process ended, or the end."""
    first, _, rest = text.partition("\n")
    reason = rest.rfind("terminate called")
    return f"{first}\n{rest[reason:][:_SHOWN] if reason >= 0 else rest[-_SHOWN:]}"


def verdicts_of(samples: Samples, tolerances: Mapping[str, Tolerance]) -> list[Verdict]:
    """Judge every figure of every worker."""
    return [
        judge(worker, figure, values, tolerances)
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
    parser.add_argument(
        "--peers", type=int, default=0, help="peers that die, besides the workers (0)"
    )
    parser.add_argument(
        "--deaths", type=float, default=2, help="mean seconds between two of them (2)"
    )
    parser.add_argument(
        "--static", action="store_true", help="a static group: dead peers are not replaced"
    )
    arguments = vars(parser.parse_args())
    where = arguments.pop("json")
    plan = Plan(**arguments)
    if plan.workers + plan.peers < 2 or plan.workers < 1 or plan.threads < 1 or plan.interval <= 0:
        parser.error(
            "it takes 1 worker and another one or a peer, 1 thread and a positive interval"
        )
    if plan.peers < 0 or plan.deaths <= 0 or (plan.static and not plan.peers):
        parser.error("--peers cannot be negative; --deaths is positive; --static needs --peers")
    if plan.seconds < 9 * plan.interval:
        parser.error("it takes 9 samples at least: more --minutes, or a shorter --interval")
    return plan, where


def main() -> int:
    """Run, judge and tell; return the exit status."""
    plan, where = parsed()
    try:
        samples, said = soak(plan, lambda line: print(line, file=sys.stderr, flush=True))
    except WorkerError as error:
        print(f"FAILED: {shortened(str(error))}")
        return 1
    verdicts = verdicts_of(samples, CHURNED if plan.peers else TOLERANCES)
    counts: collections.Counter[str] = collections.Counter()
    for one in said.values():
        counts.update(one["counts"])
    wrong = [f"{name}: {text}" for name, one in said.items() for text in one["wrong"]]
    if where is not None:
        report = {
            "plan": asdict(plan),
            "calls": dict(counts),
            "wrong": wrong,
            "longest": max(one["longest"] for one in said.values()),
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
        longest = max(one["longest"] for one in said.values())
        print(
            f"  the longest took {longest:g} s; each times out after {traffic.CALL_TIMEOUT_S:g} s"
        )
    print("medians of the first, the middle and the last third of the run:")
    for verdict in verdicts:
        print(f"  {verdict}")
    for text in wrong:
        print(f"  WRONG {text}")
    good = not wrong and all(verdict.flat for verdict in verdicts)
    print("all is well" if good else "FAILED: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
