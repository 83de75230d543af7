"""Calls and programs end, whatever faults are injected."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_faults import _native
from support import steps
from support.workers import WorkerContext, Workers

from . import fault_steps

BACKENDS = ["TENSORPIPE", "ZEROMQ"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_held_message_does_not_outlast_the_shutdown_timeout(tmp_path: Path, backend: str) -> None:
    with Workers(1, seconds=120) as workers:
        workers.run(fault_steps.join, f"file://{tmp_path}/store", backend)
        seconds, error = workers[0].call(leave_with_a_held_message)

    assert seconds < 1 + steps.AT_ONCE
    assert "has been shut down" in error


@pytest.mark.parametrize("backend", BACKENDS)
def test_duplicated_messages_do_not_hang_a_backward_pass(tmp_path: Path, backend: str) -> None:
    with Workers(3, seconds=60) as workers:
        workers.run(fault_steps.join, f"file://{tmp_path}/store", backend)
        gradients, counts = workers[0].call(differentiate_with_duplicates)
        workers.run(steps.leave)

    assert gradients == [[15.0, 15.0]] * 10
    assert counts["duplicates"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("what", ["drop", "delay", "reorder", "reply_delay", "nothing"])
def test_every_call_during_a_shutdown_ends(tmp_path: Path, backend: str, what: str) -> None:
    with Workers(1, seconds=120) as workers:
        workers.run(fault_steps.join, f"file://{tmp_path}/store", backend)
        open_ = workers[0].call(send_while_it_stops, what)

    assert open_ == 0


def test_a_log_closed_during_writes_has_no_failure(tmp_path: Path) -> None:
    for number in range(20):
        pipeline = _native.FaultPipeline("w")
        pipeline.open_log(str(tmp_path / f"{number}.jsonl"))
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(write_lines, pipeline)
            while not (tmp_path / f"{number}.jsonl").stat().st_size:
                pass
            pipeline.close_log()

        assert pipeline.log_failure() == (0, "")


def write_lines(pipeline: _native.FaultPipeline) -> None:
    """Write lines until after the log is closed."""
    for _ in range(2000):
        pipeline.log_line('"event":"mark"')


# --- steps ----------------------------------------------------------------------------------------


def leave_with_a_held_message(me: WorkerContext) -> tuple[float, str]:
    """Shut down with a timeout of 1 s while a call is held; return the duration and the outcome."""
    import rpc_backends_faults as faults

    faults.add(what="delay", seconds=30, function="*.do")
    held = rpc.rpc_async(me.name, fault_steps.do, args=(1,), timeout=60)
    begin = time.monotonic()
    rpc.shutdown(timeout=1)
    seconds = time.monotonic() - begin
    try:
        held.wait()
    except RuntimeError as error:
        return seconds, str(error)
    return seconds, "done"


def hop(x: torch.Tensor, path: list[str]) -> torch.Tensor:
    """Compute on each worker of a path, in nested calls; called by RPC."""
    y = x * 2
    if path:
        y = rpc.rpc_sync(path[0], hop, args=(y, path[1:]))
    return y + x


def differentiate_with_duplicates(me: WorkerContext) -> tuple[list[list[float]], dict[str, int]]:
    """Run backward passes across workers while every message is duplicated."""
    import rpc_backends_faults as faults

    names = ["worker0", "worker1", "worker2"]
    gradients = []
    for _ in range(10):
        with dist_autograd.context() as context:
            x = torch.ones(2, requires_grad=True)
            loss = hop(x, ["worker1", "worker2"]).sum()
            for name in names:
                faults.Worker(name).add(name="duplicates", what="duplicate")
            dist_autograd.backward(context, [loss])
            gradients.append(dist_autograd.get_gradients(context)[x].tolist())
        # Counted outside the context, whose end also sends a message.
        counts = faults.counts()
        for name in names:
            faults.Worker(name).remove("duplicates")
    return gradients, counts


def send_while_it_stops(me: WorkerContext, what: str) -> int:
    """Call from several threads while the agent shuts down; return how many calls never end."""
    import threading

    import rpc_backends_faults as faults

    seconds = {"seconds": 0.01} if "delay" in what else {}
    if what != "nothing":
        faults.add(what=what, function="*.do", every=2, **seconds)
    sent: list[torch.futures.Future[object]] = []
    enough = threading.Event()

    def send() -> None:
        try:
            while True:
                # Without a timeout, only the shutdown can end lost or held calls.
                sent.append(rpc.rpc_async(me.name, fault_steps.do, args=(1,), timeout=0))
                if len(sent) > 50:
                    enough.set()
        except RuntimeError:
            return  # RPC has stopped

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    enough.wait()
    rpc.shutdown(graceful=False)
    for thread in threads:
        thread.join()
    end = time.monotonic() + 5
    while time.monotonic() < end and not all(future.done() for future in sent):
        time.sleep(0.01)
    return sum(not future.done() for future in sent)
