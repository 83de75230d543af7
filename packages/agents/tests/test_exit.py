"""A process may exit without ``rpc.shutdown``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agents_kit import TIME_LIMIT

# send() takes the GIL again and again. A thread of C++ that does so while the interpreter ends aborts
# the process.
EXITS_WHILE_SENDING = """
import threading, time
from agents_kit import Wire, make, start
from torch.distributed import rpc

class Slow(Wire):
    def send(self, peer, parts, reply):
        sending.set()
        while not self.closed:
            time.sleep(0.001)

sending = threading.Event()
agent = make(Slow())
agent.learn(1, "b", agent.listen())
agent.add_member("b", 1)
start(agent)
rpc.rpc_async("b", abs, args=(-1,))
sending.wait()
"""


@pytest.mark.slow
def test_a_process_exits_while_a_python_transport_sends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITS_WHILE_SENDING],
        env={"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=10 * TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
