"""Whether a worker records when its environment says nothing, and when it says `off`."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed import rpc

from rpc_backends_inspect import sockets
from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers


def agent_type(_: WorkerContext) -> str:
    """Return the type of this worker's agent."""
    return type(rpc.api._get_current_rpc_agent()).__name__


def sockets_of(pid: int) -> int:
    """Return the number of sockets on which the recorder of a process answers."""
    connected = sockets.connect_all(1.0)
    for worker in connected:
        worker.connection.close()
    return sum(worker.pid == pid for worker in connected)


@pytest.mark.parametrize(
    ("value", "agent", "answering"),
    [("", "InterceptingTensorPipeStaticAgent", 1), ("off", "TensorPipeStaticAgent", 0)],
)
def test_a_worker_records_unless_the_variable_is_off(
    value: str, agent: str, answering: int, tmp_path: Path
) -> None:
    with Workers(1, env={"RPC_BACKENDS_RECORDER": value}) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", backend="TENSORPIPE")
        assert workers.run(agent_type) == [agent]
        # The kernel may keep the socket of the start, which is closed, for a moment.
        wait_until(lambda: sockets_of(workers[0].pid) == answering)
        workers.run(steps.leave)
