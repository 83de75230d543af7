"""Workers in the kernels of notebooks: cells are interrupted and run again, kernels are restarted."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from support.environments import clean_environ, free_port

pytest.importorskip("ipykernel", reason="ipykernel is not installed: `pip install ipykernel`")
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.slow

SECONDS = 20
#: The first cell of each notebook.
DEFINITIONS = """
import os, threading, time
from pathlib import Path
import torch
from torch.distributed import rpc

def double(tensor):
    return 2 * tensor

def wait_for(path, started):
    Path(started).touch()
    while not Path(path).exists():
        time.sleep(0.01)

def resources():
    return [threading.active_count(), len(os.listdir("/proc/self/fd"))]
"""


class Notebook:
    """A kernel that runs cells.

    :ivar join: the cell that joins a group of two.
    """

    def __init__(self, rank: int, port: int) -> None:
        self.join = f"rpc.init_rpc('worker{rank}', rank={rank}, world_size=2)"
        self._manager = KernelManager()
        launcher = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self._manager._kernel_spec = KernelSpec(argv=launcher, language="python")
        variables = {
            "RPC_BACKENDS_DEFAULT": "ZEROMQ",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        # clean_environ drops PYTHONPATH, and the kernel must find ipykernel where this process does.
        variables["PYTHONPATH"] = ":".join(filter(None, sys.path))
        self._manager.start_kernel(env=clean_environ(variables))
        self._client = self._manager.client()
        self._client.start_channels()
        self._begin()

    def _begin(self) -> None:
        self._client.wait_for_ready(SECONDS)
        assert self.run(DEFINITIONS) == ""

    def start(self, cell: str) -> Callable[[], str]:
        """Start a cell; return a function that waits for its end and returns its result or error."""
        message = self._client.execute(cell)

        def result() -> str:
            end, result = time.monotonic() + SECONDS, ""
            while True:
                news = self._client.get_iopub_msg(timeout=end - time.monotonic())
                if news["parent_header"].get("msg_id") != message:
                    continue
                kind, content = news["msg_type"], news["content"]
                if kind == "execute_result":
                    result = content["data"]["text/plain"]
                elif kind == "error":
                    result = f"{content['ename']}: {content['evalue']}"
                elif kind == "status" and content["execution_state"] == "idle":
                    return result

        return result

    def run(self, cell: str) -> str:
        """Run a cell; return its result or error."""
        return self.start(cell)()

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Kill the kernel, start another one, and run the first cell again."""
        self._manager.restart_kernel(now=True)
        self._begin()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def notebooks(port: int) -> Iterator[list[Notebook]]:
    """Yield two notebooks; no test leaves a group behind."""
    made = [Notebook(rank, port) for rank in range(2)]
    yield made
    for notebook in made:
        notebook.close()


def run_both(notebooks: list[Notebook], cell: Callable[[Notebook], str]) -> list[str]:
    """Run a cell in each notebook at the same time."""
    running = [notebook.start(cell(notebook)) for notebook in notebooks]
    return [result() for result in running]


def join(notebooks: list[Notebook]) -> None:
    assert run_both(notebooks, lambda notebook: notebook.join) == ["", ""]


def leave(notebooks: list[Notebook]) -> None:
    assert run_both(notebooks, lambda _: "rpc.shutdown()") == ["", ""]


def wait_until(done: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def interrupt_a_join(notebook: Notebook, port: int) -> None:
    """Interrupt the cell with ``init_rpc`` while it waits for the other worker."""
    result = notebook.start(notebook.join)
    timeout = timedelta(seconds=SECONDS)
    client = dist.TCPStore(
        "127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout
    )
    wait_until(lambda: client.check(["rpc_backends/generation"]))
    notebook.interrupt()
    assert result().startswith("KeyboardInterrupt")


def test_an_interrupted_start_can_be_run_again(notebooks: list[Notebook], port: int) -> None:
    first, second = notebooks
    interrupt_a_join(first, port)  # imports what a start needs
    before = ast.literal_eval(first.run("resources()"))

    interrupt_a_join(first, port)

    wait_until(lambda: ast.literal_eval(first.run("resources()")) <= before)
    join(notebooks)
    assert first.run("rpc.rpc_sync('worker1', double, args=(torch.ones(2),))") == "tensor([2., 2.])"
    assert second.run("rpc.rpc_sync('worker0', double, args=(torch.ones(1),))") == "tensor([2.])"
    leave(notebooks)


def test_an_interrupted_call_leaves_the_group_usable(
    notebooks: list[Notebook], tmp_path: Path
) -> None:
    """As in plain torch, the interrupt takes effect when the call ends, here by its timeout."""
    join(notebooks)
    started, over = tmp_path / "started", tmp_path / "over"
    call = f"rpc.rpc_sync('worker1', wait_for, args=({str(over)!r}, {str(started)!r}), timeout=3)"
    result = notebooks[0].start(call)
    wait_until(started.exists)

    notebooks[0].interrupt()

    assert result().startswith("KeyboardInterrupt")
    over.touch()
    call = "rpc.rpc_sync('worker1', double, args=(torch.ones(1),))"
    assert notebooks[0].run(call) == "tensor([2.])"
    leave(notebooks)


def test_a_restarted_kernel_is_a_lost_peer(notebooks: list[Notebook], tmp_path: Path) -> None:
    join(notebooks)
    caller, callee = notebooks
    started, never = tmp_path / "started", tmp_path / "never"
    call = f"rpc.rpc_sync('worker1', wait_for, args=({str(never)!r}, {str(started)!r}), timeout=0)"
    result = caller.start(call)
    wait_until(started.exists)

    callee.restart()

    assert "RPC to 'worker1' failed: the connection is lost" in result()
    assert caller.run("rpc.shutdown(graceful=False)") == ""
    join(notebooks)
    assert callee.run("rpc.rpc_sync('worker0', double, args=(torch.ones(1),))") == "tensor([2.])"
    leave(notebooks)
