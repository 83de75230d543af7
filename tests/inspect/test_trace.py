"""`rpc-backends trace`: it draws a run, with the clocks of the hosts aligned."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_inspect import chrome
from rpc_backends_inspect.workers import WorkerState, parse_state, running
from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers

SHIFT_US = 3_600_000_000
PROGRAM = """
import sys
import torch
import torch.multiprocessing as mp
from torch.distributed import rpc

def main(rank, url):
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=2, backend=rpc.BackendType.ZEROMQ,
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            rpc.BackendType.ZEROMQ, init_method=url
        ),
    )
    if rank == 0:
        for _ in range(5):
            rpc.rpc_sync("worker1", torch.add, (torch.ones(1000), 1))
    rpc.shutdown()

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1],), nprocs=2)
    sys.exit(int(sys.argv[2]))
"""


def add_remotely(to: str) -> torch.Tensor:
    return rpc.rpc_sync(to, torch.add, (torch.ones(1000), 1))


def make_calls(me: WorkerContext, to: str, back: str) -> None:
    for _ in range(3):
        rpc.rpc_sync(to, add_remotely, (back,))
    for future in [rpc.rpc_async(to, torch.add, (torch.ones(10), 1)) for _ in range(5)]:
        future.wait()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpc_backends_cli", "trace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the states of two workers that have called each other."""
    folder = tmp_path_factory.mktemp("trace")
    with Workers(2, env={"RPC_BACKENDS_RECORDER": "on"}) as workers:
        workers.run(steps.join, f"file://{folder}/store", backend="ZEROMQ")
        workers[0].call(make_calls, "worker1", "worker0")
        states: list[WorkerState] = []

        def are_over() -> bool:
            # A worker notes the end of a call once its answer has left, so the caller may have it before.
            states[:] = running(pids=[worker.pid for worker in workers])
            return not any(state.document["in_flight"] for state in states)

        wait_until(are_over)
        return [state.document for state in states]


@pytest.fixture
def shifted(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `documents` as if the second worker were on another host, whose clock is an hour ahead."""
    first, second = copy.deepcopy(documents)
    second["host"] = "elsewhere"
    second["time_us"] += SHIFT_US
    for call in second["recent"] + second["in_flight"]:
        call["begin_us"] += SHIFT_US
        call["end_us"] += SHIFT_US if call["end_us"] else 0
    return [first, second]


def events(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    states: list[WorkerState] = [parse_state(document) for document in documents]
    drawn: list[dict[str, Any]] = chrome.trace(states)["traceEvents"]
    return drawn


def test_each_arrow_joins_a_call_and_its_execution(documents: list[dict[str, Any]]) -> None:
    drawn = events(documents)
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in drawn:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    made = [event for event in drawn if event["ph"] == "X" and " to " in event["name"]]
    assert len(made) >= 3 * 2 + 5
    assert len(arrows) == 2 * len(made)  # the request and the answer of each call
    for pair in arrows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        assert pair[0]["pid"] != pair[1]["pid"]
        for event in pair:
            assert any(
                (slice_["pid"], slice_["tid"]) == (event["pid"], event["tid"])
                and slice_["ts"] <= event["ts"] <= slice_["ts"] + slice_["dur"]
                for slice_ in drawn
                if slice_["ph"] == "X"
            )


def test_slices_of_a_row_do_not_overlap(documents: list[dict[str, Any]]) -> None:
    """One slice may enclose another. Viewers cannot show slices that overlap in another way."""
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events(documents):
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            rows.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in rows.values():
        for i, (begin, end) in enumerate(spans):
            for other_begin, other_end in spans[i + 1 :]:
                apart = other_begin >= end - 1 or other_end <= begin + 1
                inside = begin <= other_begin and other_end <= end
                assert apart or inside or (other_begin <= begin and end <= other_end)


def test_sizes_and_functions_are_shown(documents: list[dict[str, Any]]) -> None:
    shown = Counter(event["args"]["function"] for event in events(documents) if event["ph"] == "X")
    assert shown[f"{__name__}.add_remotely"] == 6  # each of three calls at caller and callee
    (sizes,) = {
        event["args"]["answer bytes"] > 4000
        for event in events(documents)
        if event["ph"] == "X" and event["args"]["function"] == f"{__name__}.add_remotely"
    }
    assert sizes


def test_clocks_of_hosts_are_aligned_by_calls(shifted: list[dict[str, Any]]) -> None:
    arrows: dict[int, dict[str, dict[str, Any]]] = {}
    drawn = events(shifted)
    for event in drawn:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
    assert all(pair["s"]["ts"] <= pair["f"]["ts"] for pair in arrows.values())
    times = [event["ts"] for event in drawn if event["ph"] == "X"]
    assert max(times) - min(times) < SHIFT_US / 60


def test_aligned_executions_lie_inside_their_calls(shifted: list[dict[str, Any]]) -> None:
    """The error of the alignment is less than the time of a message."""
    offsets = [0, SHIFT_US]
    first, second = (parse_state(document) for document in shifted)
    from rpc_backends_inspect import clocks

    pairs = list(clocks.pairs([first, second]))
    measured = clocks.offsets_us([first, second], pairs)
    trips = [
        (pair.sent.end_us - pair.sent.begin_us) - (pair.served.end_us - pair.served.begin_us)
        for pair in pairs
    ]
    assert abs(measured[1] - offsets[1]) <= max(min(trips), 0) + 50


def test_dumps_are_drawn(documents: list[dict[str, Any]], tmp_path: Path) -> None:
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    out = tmp_path / "trace.out"
    done = run("--out", str(out), *map(str, sorted(tmp_path.glob("*.json"))))
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["traceEvents"]


@pytest.mark.slow
def test_a_program_is_run_and_drawn(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    out = tmp_path / "trace.out"
    done = run("--out", str(out), sys.executable, str(program), f"file://{tmp_path}/store", "3")
    assert done.returncode == 3, done.stderr
    assert "calls of 2 workers; open it in" in done.stderr
    drawn = json.loads(out.read_text())["traceEvents"]
    names = [event["name"] for event in drawn if event["ph"] == "X"]
    assert names.count("add to worker1") == 5
    assert names.count("add from worker0") == 5


def test_a_program_without_workers_is_refused(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out"), sys.executable, "-c", "print('hello')")
    assert done.returncode != 0
    assert "has written a dump (its exit status is 0)" in " ".join(done.stderr.split())


def test_what_is_neither_dump_nor_program_is_refused(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path / "out"), "no-such-program")
    assert done.returncode != 0
    assert "no-such-program is neither a dump nor a program" in " ".join(done.stderr.split())


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    done = run("--out", str(tmp_path / "out"), str(tmp_path / "notes"))
    assert done.returncode != 0
    text = " ".join(done.stderr.split())
    assert "is neither a dump nor a program: it is a file that cannot be run" in text
