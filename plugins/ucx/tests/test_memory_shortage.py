"""A shortage of memory ends at most the connections: messages arrive again afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: One allocation after the other fails while worker 0 receives; then a message must arrive.
_SCRIPT = """
import ctypes, sys, time
sys.path.insert(0, sys.argv[1])
from support.ucx_transports import pair

fail_allocation = ctypes.CDLL(None).fail_allocation
me, peer = pair(handshake_timeout=0.3)  # an opening that got no memory is tried again after that

def send(text):
    try:
        peer.send(0, [text, bytes(300), bytes(20_000)], False)
    except RuntimeError:
        pass  # the connection is lost for the moment

def arrives(text):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        send(text)
        for _ in range(5):
            peer.receive(0.01)
            event = me.receive(0.01)
            if event and event[0] == "message" and event[2][0] == text:
                return True
    return False

failed = 0
for number in range(1, 30):
    send(b"lost, perhaps")
    fail_allocation(number)
    try:
        me.receive(0.01)
    except (MemoryError, BufferError):  # a BufferError if a part has arrived and gets no memoryview
        pass
    failed += fail_allocation(0) == 0
    if not arrives(b"%d" % number):
        sys.exit(f"no message arrives after allocation {number} has failed")
print(failed)
"""


def test_messages_arrive_after_each_failed_allocation(tmp_path: Path) -> None:
    library = tmp_path / "failing_new.so"
    source = ROOT / "tests" / "support" / "failing_new.cpp"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(ROOT / "tests")],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 5  # so many allocations failed
