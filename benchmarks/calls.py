"""The time of a call through the plugins, beside the same call through stock torch.

Two groups of two processes are alive at once, one with our packages and one with stock torch
(TORCH_DEVICE_BACKEND_AUTOLOAD=0), and short blocks of calls alternate between them in an order that is
drawn. TensorPipe polls its shared memory without a pause, so the processes of the group that waits are
stopped (SIGSTOP) meanwhile. Callers stay on one core and callees on another: left to the system, it
depends on where the polling threads happen to be whether a call takes 100 us or 200 us, on both sides.
After some rounds (a *sitting*) both groups are made anew, since sets of processes differ, too.

Measured with `rpc_sync` from one process to the other: a no-op in Python, the builtin `torch.add` of
2 x 2 floats, and the echo of a tensor of 1 MiB. The figure of a block is its median.

The *control* is the same with stock torch on both sides: what it differs from 1 by is the method's error.

For comparison: the same bytes there and back over a bare TCP socket, and a call of a worker on itself.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from _measure import (
    Bar,
    Comparisons,
    Figure,
    Machine,
    Progress,
    Report,
    add_arguments,
    in_turns,
    say,
)
from _sides import OURS, STOCK, Group, Side, both_sides

CALL = Bar(1.03, 0.97)
#: Calls in a block by kind, and how many before them are not measured.
BLOCKS = {"no-op": (200, 20), "torch.add": (200, 20), "echo of 1 MiB": (40, 4)}
ON_ONESELF = "no-op on oneself"
SOCKET_SIZES = {"64 B": 64, "1 MiB": 1 << 20}
DISTRIBUTIONS = (
    "torch",
    "rpc-backends-core",
    "rpc-backend-tensorpipe",
    "rpc-backend-faulty-tensorpipe",
)

#: Heading, backend, and the side that is compared with stock torch.
Subject = tuple[str, str, str]
SUBJECTS: tuple[Subject, ...] = (
    ("TENSORPIPE", "TENSORPIPE", OURS),
    ("FAULTY_TENSORPIPE", "FAULTY_TENSORPIPE", OURS),
    ("control: stock TENSORPIPE twice", "TENSORPIPE", STOCK),
)

ECHO_SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
channel, _ = server.accept()
channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while size := int.from_bytes(channel.recv(8, socket.MSG_WAITALL), "big"):
    channel.sendall(channel.recv(size, socket.MSG_WAITALL))
"""


def sitting(
    sides: dict[str, Side],
    subject: Subject,
    rounds: int,
    chance: random.Random,
    comparisons: Comparisons,
    bare: BareSocket,
    *,
    pinned: bool,
) -> None:
    """Measure one subject with one set of processes."""
    section, backend, side = subject
    with sides[side].group(2) as ours, sides[STOCK].group(2) as stock:
        groups = {"ours": ours, "reference": stock}
        for name in in_turns(list(groups), chance):
            group = groups[name]
            if pinned:
                group.pin()
            group.start(backend)
            for kind, (calls, _) in BLOCKS.items():
                group.block(kind, calls, 0)
            group.freeze()
        for _ in range(rounds):
            for kind in BLOCKS:
                times = {
                    name: _block(groups[name], kind) for name in in_turns(list(groups), chance)
                }
                bar = CALL if side == OURS else None
                comparisons.add(section, kind, times["ours"], times["reference"], bar)
            bare.measure()
        for group in groups.values():
            group.thaw()
            group.stop()


def _block(group: Group, kind: str) -> float:
    group.thaw()
    time.sleep(0.002)
    calls, unmeasured = BLOCKS[kind]
    try:
        return group.block(kind, calls, unmeasured)
    finally:
        group.freeze()


class BareSocket:
    """Echoes over a TCP socket to another process, with nothing of torch in either."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.figures = {
            name: Figure(f"bare socket, {name} there and back") for name in SOCKET_SIZES
        }

    def measure(self) -> None:
        """Measure one block of each size."""
        for name, size in SOCKET_SIZES.items():
            message = size.to_bytes(8, "big") + bytes(size)
            times = []
            for _ in range(20):
                begin = time.perf_counter()
                self._channel.sendall(message)
                self._channel.recv(size, socket.MSG_WAITALL)
                times.append(time.perf_counter() - begin)
            self.figures[name].values.append(statistics.median(times))


@contextlib.contextmanager
def bare_socket() -> Iterator[BareSocket]:
    """Start the other process, which ends with the block."""
    server = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", ECHO_SERVER], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as channel:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield BareSocket(channel)
    finally:
        server.kill()
        server.wait()


def measure_on_oneself(side: Side, figure: Figure, blocks: int, *, pinned: bool) -> None:
    """Measure calls of a worker on itself: caller and callee are one process."""
    with side.group(2) as group:
        if pinned:
            group.pin()
        group.start("TENSORPIPE")
        group.block(ON_ONESELF, *BLOCKS["no-op"])
        for _ in range(blocks):
            figure.values.append(group.block(ON_ONESELF, *BLOCKS["no-op"]))
        group.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--sittings", type=int, default=20, help="sets of processes (20)")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of blocks in a sitting (8)")
    parser.add_argument("--no-control", action="store_true", help="leave out the control")
    parser.add_argument(
        "--no-pin", action="store_true", help="let the system choose cores (see above)"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sittings, arguments.rounds = 1, 8
    if min(arguments.sittings, arguments.rounds) < 1:
        parser.error("a comparison needs one sitting and one round at least")

    machine = Machine.here(*DISTRIBUTIONS)
    say(str(machine))
    subjects = [s for s in SUBJECTS if s[2] == OURS or not arguments.no_control]
    comparisons = Comparisons()
    on_oneself = Figure("no-op on oneself, stock TENSORPIPE")
    chance, pinned = random.Random(arguments.seed), not arguments.no_pin
    with (
        both_sides() as sides,
        bare_socket() as bare,
        Progress("sittings", arguments.sittings * len(subjects)) as progress,
    ):
        for _ in range(arguments.sittings):
            comparisons.new_sitting()
            for subject in subjects:
                sitting(sides, subject, arguments.rounds, chance, comparisons, bare, pinned=pinned)
                progress.step()
            measure_on_oneself(sides[STOCK], on_oneself, 4, pinned=pinned)
    report = Report("Calls", "plugins", "stock torch", machine, comparisons)
    report.figures = [on_oneself, *bare.figures.values()]
    report.show(arguments)


if __name__ == "__main__":
    main()
