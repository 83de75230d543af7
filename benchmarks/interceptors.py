"""Measure what fault injection, the recorder, OpenTelemetry, the guard and interceptors add to a call.

On TENSORPIPE and on ZEROMQ (or others, with --backend), no-ops from one process to another, one at a
time and with calls in flight (their total time, per call). Both processes have the interceptor:

* *faults*: fault injection without a rule (`RPC_BACKENDS_FAULTS=on`), and *100 rules*, none of which
  matches a message;
* *recorder*: the recorder of rpc-backends-inspect;
* *opentelemetry*: traces of 1 % of the calls, and metrics of all, sent to a server that drops them;
* *guard*: a policy of 200 entries, enforced; TENSORPIPE, which is guarded in part only, has no such row;
* *observer*: `on_end` is called after each call, which does not wait for it;
* *policy*: `on_outgoing` is called before each call, which waits for it;
* the *control*: the bare backend beside itself; its difference from 1 is the method's error.

All groups are alive at once and take turns with short blocks of calls, in random order; idle ones are
suspended. Callers and callees run on different cores.
"""

from __future__ import annotations

import contextlib
import http.server
import inspect
import itertools
import random
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import _interceptor_tasks
import torch
from _report import Bar, Report, parser, run

from rpc_backends_bench.calls import start_pair
from rpc_backends_bench.participants import Group
from rpc_backends_bench.process_set import shuffled
from rpc_backends_bench.progress import Progress
from rpc_backends_bench.subjects import Subject

BACKENDS = ("TENSORPIPE", "ZEROMQ")
#: The environment of each side.
SIDES: dict[str, dict[str, str]] = {
    "bare": {},
    "control": {},
    "faults": {"RPC_BACKENDS_FAULTS": "on"},
    "100 rules": {},  # main() adds the path of the rules
    "recorder": {"RPC_BACKENDS_RECORDER": "on"},
    "opentelemetry": {
        "RPC_BACKENDS_OTEL": "1",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
    },
    "guard": {},  # main() adds the path of the policy
    "observer": {"MEASURED_INTERCEPTOR": "Observer"},
    "policy": {"MEASURED_INTERCEPTOR": "Policy"},
}
#: With the recorder, a no-op takes up to 1.03 times as long, and calls in flight reach 0.97 of the rate.
_BARS = {
    "faults": {"no-op": Bar(1.02, 0.98), "calls in flight": Bar(1.02, 0.98)},
    "100 rules": {"no-op": Bar(1.05), "calls in flight": Bar(1.05)},
    "recorder": {"no-op": Bar(high=1.03), "calls in flight": Bar(high=1 / 0.97)},
    "opentelemetry": {"no-op": Bar(high=1.05), "calls in flight": Bar(high=1.05)},
    "guard": {"no-op": Bar(high=1.05), "calls in flight": Bar(high=1.05)},
}
#: The backends that the guard guards only in part.
_PARTLY_GUARDED = ("TENSORPIPE", "FAULTY_TENSORPIPE")
_ENTRIES = 200
_WINDOW = 32
_WINDOW_S = 0.25
#: After this time a block ends, even if it has made fewer calls.
_BLOCK_TIMEOUT_S = 10.0

HOOK = """
import os
from rpc_backends_agents import CallInterceptor, intercept
from rpc_backends_core import hookimpl

class Observer(CallInterceptor):
    def on_end(self, call, seconds, error):
        assert error is None

class Policy(CallInterceptor):
    def on_outgoing(self, call):
        assert call.function

@hookimpl(wrapper=True)
def rpc_backends_agent():
    agent = yield
    kind = os.environ.get("MEASURED_INTERCEPTOR")
    return agent if kind is None else intercept(agent, globals()[kind](), name="measured")
"""


#: Half of the rules name a function, because the function is the most expensive property to read.
RULES = "".join(
    f'[[rule]]\nname = "never-{n}"\nwhat = "drop"\n'
    + (f'function = "*.train.step_{n}"\n' if n % 2 else 'receiver = "worker0"\n')
    for n in range(100)
)


def policy() -> str:
    """Return a policy of the guard that permits a no-op to the peers, and functions of torch."""
    others = (name for name, value in sorted(vars(torch).items()) if inspect.isroutine(value))
    entries = ["rpc_backends_bench.worker_tasks:noop"]
    entries += [f"torch:{name}" for name in itertools.islice(others, _ENTRIES - 1)]
    return f"version = 1\n[[rule]]\npeers = ['worker*']\nfunctions = {entries}\n"


def write_files(folder: Path) -> None:
    """Write the rules, the policy, and an installed hook package for `PYTHONPATH`."""
    (folder / "rules.toml").write_text(RULES)
    (folder / "policy.toml").write_text(policy())
    (folder / "measured_interceptor.py").write_text(HOOK)
    metadata = folder / "measured_interceptor-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: measured-interceptor\nVersion: 1\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[rpc.backends.hooks]\nmeasured = measured_interceptor\n"
    )


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Run a server that takes OTLP over HTTP and drops it; gives its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def start(group: Group, side: str) -> None:
    """Start a pair of workers, make some calls, and suspend them."""
    start_pair(group, pinned=True)
    has_interceptor = bool(SIDES[side]) and side != "guard"
    unexpected = "does not wrap" if has_interceptor else "wraps"
    for index in range(2):
        if group.call(index, _interceptor_tasks.is_intercepted) != has_interceptor:
            raise AssertionError(f"{group.label}: the interceptor {unexpected} the agent")
        if group.call(index, _interceptor_tasks.is_guarded) != (side == "guard"):
            raise AssertionError(f"{group.label}: the guard is on in the wrong pair")
    group.suspend()
    block(group)


def block(group: Group) -> dict[str, float]:
    """Return the median time of a no-op, and the time per call of calls in flight."""
    group.resume()
    (times,) = group.latency("latency.noop", 200, _BLOCK_TIMEOUT_S).values()
    rate = group.throughput(_WINDOW, _WINDOW_S)
    group.suspend()
    return {"no-op": statistics.median(times), "calls in flight": 1 / rate}


def measure(
    backend: str,
    sides: list[str],
    number: int,
    rounds: int,
    rng: random.Random,
    report: Report,
    endpoint: str,
) -> None:
    """Measure one backend with one process set."""
    if backend in _PARTLY_GUARDED:
        sides = [side for side in sides if side != "guard"]
    with contextlib.ExitStack() as stack:
        groups = {}
        for side in sides:
            variables = SIDES[side]
            env = {
                "RPC_BACKENDS_RECORDER": "off",
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                **variables,
            }
            group = groups[side] = Group(Subject(side, backend), 2, seconds=900, env=env)
            stack.callback(group.close)
            group.open()
            start(group, side)
        for turn in range(rounds):
            times = {side: block(groups[side]) for side in shuffled(sides, rng)}
            for side in sides[1:]:
                for row, value in times[side].items():
                    bar = _BARS.get(side, {}).get(row)
                    pair = (value, times["bare"][row])
                    report.add_pair(f"{backend}: {side}", row, (number, turn), pair, bar)
        for group in groups.values():
            group.resume()
            group.stop()


def main() -> int:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--sets", type=int, default=4, help="number of process sets (4)")
    options.add_argument("--rounds", type=int, default=8, help="rounds with each process set (8)")
    options.add_argument(
        "--backend", action="append", help="a backend; may repeat (TENSORPIPE, ZEROMQ)"
    )
    options.add_argument(
        "--side", action="append", choices=list(SIDES)[1:], help="what to measure (all)"
    )
    arguments = options.parse_args()
    backends = arguments.backend or BACKENDS
    sides = ["bare", *(arguments.side or list(SIDES)[1:])]
    if arguments.quick:
        arguments.sets, arguments.rounds = 1, 3
    if min(arguments.sets, arguments.rounds) < 1:
        options.error("--sets and --rounds must be at least 1")
    report = Report("Interceptors", "with", "without", "rpc-backends-agents")
    rng = random.Random(arguments.seed)

    def measure_all(progress: Progress) -> None:
        with collector() as endpoint:
            measure_backends(progress, endpoint)

    def measure_backends(progress: Progress, endpoint: str) -> None:
        for number in range(arguments.sets):
            for backend in backends:
                progress.describe(f"{backend}, process set {number + 1}")
                measure(backend, sides, number, arguments.rounds, rng, report, endpoint)
                progress.advance(1)

    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        sys.path.append(folder)  # workers get the same path
        SIDES["100 rules"] = {"RPC_BACKENDS_FAULTS": f"{folder}/rules.toml"}
        SIDES["guard"] = {"RPC_BACKENDS_GUARD": f"{folder}/policy.toml"}
        return run(report, arguments, arguments.sets * len(backends), measure_all)


if __name__ == "__main__":
    sys.exit(main())
