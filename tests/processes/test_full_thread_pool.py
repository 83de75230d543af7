"""A worker all of whose threads run requests says so."""

from __future__ import annotations

import logging
import queue
import threading
from logging.handlers import QueueHandler
from pathlib import Path

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

released = threading.Event()
lines: queue.Queue[logging.LogRecord] = queue.Queue()


def wait() -> bool:
    """Take a thread until the test releases it."""
    return released.wait(60)


def collect(me: WorkerContext) -> None:
    """Collect the log lines of the agent of this worker."""
    logging.getLogger("rpc_backends.agents").addHandler(QueueHandler(lines))


def next_line(me: WorkerContext) -> str:
    """Wait for a log line, then release the threads."""
    try:
        return lines.get(timeout=60).getMessage()
    finally:
        released.set()


def call(me: WorkerContext, count: int) -> None:
    """Make calls that take a thread each."""
    for _ in range(count):
        rpc.rpc_async("worker1", wait)


def test_a_long_wait_for_a_thread_names_the_running_functions(tmp_path: Path) -> None:
    with Workers(2, seconds=90) as workers:
        url = f"file://{tmp_path}/store"
        workers[1].call(collect)
        workers.run(steps.join, url, backend="ZEROMQ", num_worker_threads=2)
        workers[0].call(call, 5)
        line = workers[1].call(next_line)
        assert (
            "all threads of worker 'worker1' for requests are taken (num_worker_threads=2)" in line
        )
        assert f"2 x {__name__}.wait. 3 more wait, the first one for " in line
        workers.run(steps.leave)
