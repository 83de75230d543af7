"""The two sides of a comparison: processes with our packages, and processes with stock torch.

Each side has one server with torch imported, which forks workers (`_worker`). TensorPipe polls its
shared memory without a pause, so an idle worker takes half a core; :meth:`Group.freeze` stops the
processes of a group that waits for its turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.environments import clean_environ, free_port  # noqa: E402 - the line above says where from

OURS, STOCK = "ours", "stock"

#: Begin and end of something, by the clock that all processes share.
Span = tuple[float, float]

#: Seconds in which a worker must have done whatever it was asked for.
_PATIENCE = 120.0
#: Seconds from asking all workers of a group to the moment when all begin.
_LEAD = 0.01

#: How Linux writes that a socket listens.
_LISTENING = "0A"

#: torch's TCP store asks for the name of each address that connects to it. A name server that does not
#: answer keeps a group of 32 waiting for 5 s, on both sides; nobody is asked here.
_NO_NAME_SERVER = {"RES_OPTIONS": "attempts:0"}
_ENVIRON: dict[str, dict[str, str]] = {
    OURS: _NO_NAME_SERVER,
    STOCK: {**_NO_NAME_SERVER, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
}


class Side:
    """One side: starts groups of workers.

    :param name: ``ours`` or ``stock``.
    :param folder: for its files while it runs.
    :param sources: folders that go before what is installed.
    """

    def __init__(self, name: str, folder: Path, sources: Sequence[Path] = ()) -> None:
        self.name = name
        address = str(folder / f"{name}.socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._listener.settimeout(_PATIENCE)
        self._log: BinaryIO = (folder / f"{name}.log").open("w+b")
        self._server = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                "import sys, _worker; _worker.serve(*sys.argv[1:])",
                address,
                name,
            ],
            cwd=HERE,
            env=clean_environ({**_ENVIRON[name], "PYTHONPATH": os.pathsep.join(map(str, sources))}),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # A group of their own, so that workers which stand still when the benchmark is killed
            # are ended by the system.
            process_group=0,
        )
        self._connection, _ = self._accept()

    @contextlib.contextmanager
    def group(self, size: int) -> Iterator[Group]:
        """Start ``size`` workers, which end with the block."""
        group = self.new_group(size)
        try:
            yield group
        finally:
            group.close()

    def new_group(self, size: int) -> Group:
        """Start ``size`` workers, which end when the group is closed."""
        self._connection.send(size)
        return Group(self, [self._accept() for _ in range(size)])

    def log(self) -> str:
        """Return what the processes have printed."""
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-8000:]

    def close(self) -> None:
        """End the server and all that it has forked."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        self._listener.close()
        self._log.close()

    def _accept(self) -> tuple[Connection, int]:
        try:
            connection = Connection(self._listener.accept()[0].detach())
            return connection, connection.recv()
        except (TimeoutError, EOFError):
            raise RuntimeError(f"{self.name}: a process has not come up\n{self.log()}") from None


class Group:
    """Some workers of one side, asked for things one by one or all at once."""

    def __init__(self, side: Side, workers: list[tuple[Connection, int]]) -> None:
        self._side = side
        self._workers = workers
        self._port = 0

    def __len__(self) -> int:
        return len(self._workers)

    def start(
        self, backend: str, options: dict[str, Any] | None = None, *, host_first: bool = False
    ) -> float:
        """Call ``init_rpc`` for a static group; return the seconds from the first to the last.

        :param options: that the backend is to be given; none for stock torch's.
        :param host_first: let rank 0, which hosts the store, begin before the others, and measure from
            when these begin.
        """
        self.ask_all("prepare", backend=backend)
        port, ranks = free_port(), range(len(self))
        arguments = {
            "backend": backend,
            "world_size": len(self),
            "port": port,
            "options": options,
        }
        if host_first:
            self._post(0, "start", {**arguments, "rank": 0})
            _wait_until_listening(port)
        at = _soon()
        for rank in ranks[host_first:]:
            self._post(rank, "start", {**arguments, "rank": rank, "at": at})
        spans: list[Span] = [self._receive(rank) for rank in ranks]
        last = max(end for _, end in spans)
        return last - min(begin for begin, _ in spans[host_first:])

    def greet(self, others: int | None = None) -> float:
        """Let every worker call others once: all, or so many that come after it, around the group.

        Return how long that takes.
        """
        size, at = len(self), _soon()
        reach = range(1, size if others is None else min(others + 1, size))
        for rank in range(size):
            ranks = [(rank + distance) % size for distance in reach]
            self._post(rank, "greet", {"ranks": ranks, "at": at})
        return _length([self._receive(rank) for rank in range(size)])

    def stop(self) -> float:
        """Call ``shutdown``; return the seconds from the first call to the last return."""
        return _length(self.ask_all("stop", at=_soon()))

    def join(self, rank: int) -> float:
        """Let one worker join a dynamic group, rank 0 first; return how long that takes."""
        if rank == 0:
            self._port = free_port()
        self._post(
            rank,
            "start",
            {"backend": "TENSORPIPE", "rank": rank, "world_size": None, "port": self._port},
        )
        return _length([self._receive(rank)])

    def leave(self, rank: int) -> float:
        """Let one worker leave a dynamic group; return how long that takes."""
        return _length([self.ask(rank, "stop")])

    def block(self, kind: str, calls: int, unmeasured: int) -> float:
        """Return the median time of a call from the first worker, in seconds."""
        return float(self.ask(0, "block", kind=kind, calls=calls, unmeasured=unmeasured))

    def flood(self, calls: int, in_flight: int) -> float:
        """Return the time of a no-op of the first worker, with so many at once, in seconds."""
        return float(self.ask(0, "flood", calls=calls, in_flight=in_flight))

    def processor_time(self) -> float:
        """Return the seconds that all workers have had of a processor."""
        return float(sum(self.ask_all("processor_time")))

    def ask(self, rank: int, method: str, **arguments: Any) -> Any:
        """Let one worker do something; return its answer."""
        self._post(rank, method, arguments)
        return self._receive(rank)

    def ask_all(self, method: str, **arguments: Any) -> list[Any]:
        """Let all workers do the same at once; return their answers, by rank."""
        for rank in range(len(self)):
            self._post(rank, method, arguments)
        return [self._receive(rank) for rank in range(len(self))]

    def pin(self) -> None:
        """Keep each process on a core of its own, as far as there are cores; before :meth:`start`."""
        cores = sorted(os.sched_getaffinity(0))
        for rank, (_, pid) in enumerate(self._workers):
            os.sched_setaffinity(pid, {cores[rank % len(cores)]})

    def freeze(self) -> None:
        """Stop the processes where they are."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End the processes; those that are in an RPC group are not asked to shut it down."""
        for connection, _ in self._workers:
            connection.close()
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for _, pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _post(self, rank: int, method: str, arguments: dict[str, Any]) -> None:
        self._workers[rank][0].send((method, arguments))

    def _receive(self, rank: int) -> Any:
        connection = self._workers[rank][0]
        if not connection.poll(_PATIENCE):
            raise TimeoutError(
                f"{self._side.name}: worker {rank} has not answered for {_PATIENCE:g} s\n"
                f"{self._side.log()}"
            )
        try:
            good, answer = connection.recv()
        except EOFError:
            raise RuntimeError(
                f"{self._side.name}: worker {rank} has died\n{self._side.log()}"
            ) from None
        if not good:
            raise RuntimeError(f"{self._side.name}: worker {rank} failed\n{answer}")
        return answer


@contextlib.contextmanager
def both_sides(sources: Sequence[Path] = ()) -> Iterator[dict[str, Side]]:
    """Start the servers of both sides, which end with the block.

    :param sources: folders that on our side go before what is installed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rpc-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        sides = {}
        for name in (OURS, STOCK):
            sides[name] = Side(name, Path(folder), sources if name == OURS else ())
            stack.callback(sides[name].close)
        yield sides


def _wait_until_listening(port: int) -> None:
    """Wait until somebody listens on a TCP port; looks, since a connection would be noticed."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, address, _, state, *_ = line.split()
                if state == _LISTENING and address.endswith(f":{port:04X}"):
                    return
        time.sleep(0.005)
    raise TimeoutError(f"nobody listens on port {port}")


def _soon() -> float:
    return time.perf_counter() + _LEAD


def _length(spans: list[Span]) -> float:
    return max(end for _, end in spans) - min(begin for begin, _ in spans)
