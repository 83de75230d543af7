"""A program may end without ``rpc.shutdown`` while other workers' functions run in its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 120.0
#: The sleeps end during the exit, all at about the same time, and their threads then want the GIL.
ENDS_WITH_MANY_FUNCTIONS = """
import sys, threading, time
from torch.distributed import rpc

started = threading.Semaphore(0)

def nap():
    started.release()
    time.sleep(2)

backend, store = sys.argv[1:]
rpc.init_rpc("worker", rank=0, world_size=1, backend=backend, rpc_backend_options=rpc.backend_registry
    .construct_rpc_backend_options(rpc.BackendType[backend], init_method=f"file://{store}"))
futures = [rpc.rpc_async("worker", nap) for _ in range(20)]
for _ in range(16):  # the worker's threads
    started.acquire()
sys.exit(3)
"""


@pytest.mark.slow
# The agent, which both engines share, ends the threads.
@pytest.mark.parametrize("backend", ["ZEROMQ", pytest.param("UCX", marks=pytest.mark.thorough)])
def test_a_process_ends_while_many_functions_end(backend: str, tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS_WITH_MANY_FUNCTIONS, backend, str(tmp_path / str(number))]
        )
        for number in range(4)
    ]
    try:
        assert [process.wait(LIMIT) for process in started] == [3] * len(started)
    finally:
        for process in started:
            process.kill()
            process.wait()
