"""Members of a dynamic group on a transport in Python leave the list when they die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support import steps
from support.command import wait_until
from support.workers import Workers

pytestmark = pytest.mark.slow


def test_a_killed_member_leaves_the_list_of_a_python_transport(
    tmp_path: Path, sockets_package: Path
) -> None:
    with Workers(3, seconds=120) as workers:
        url = f"file://{tmp_path}/store"
        workers.run(steps.put_on_path, sockets_package)
        for worker in workers:
            worker.call(steps.join_dynamic, url, backend="SOCKETS")
        workers[0].call(steps.call, "worker2")
        os.kill(workers[2].pid, signal.SIGKILL)
        for worker in list(workers)[:2]:
            wait_until(
                lambda worker=worker: worker.call(steps.members) == {"worker0": 0, "worker1": 1}
            )
            worker.call(steps.use_rref, f"worker{1 - worker.index}")
        for worker in list(workers)[:2]:
            worker.call(steps.leave)
