"""What runs in the processes that are measured: a server that forks workers, and the workers.

The server has imported torch and nothing else, so a worker is what a user's program is just before it
calls ``init_rpc``, and it is there in a few milliseconds. It does what it is asked to over a connection
to the benchmark.
"""

from __future__ import annotations

import collections
import ctypes
import os
import resource
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: Begin and end of something, by the system's monotonic clock, which all processes share.
Span = tuple[float, float]

_MADV_POPULATE_WRITE = 23

#: Stock torch has no defaults for these.
_FAULTY: dict[str, Any] = {
    "num_worker_threads": 16,
    "messages_to_fail": [],
    "messages_to_delay": {},
    "num_fail_sends": 0,
}


def serve(address: str, side: str) -> None:
    """Import torch, then fork as many workers as the benchmark asks for, again and again."""
    import torch  # noqa: F401 - what a worker has before it begins

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    connection = _connect(address)
    connection.send(os.getpid())
    while True:
        try:
            count = connection.recv()
        except EOFError:
            return
        for _ in range(count):
            if os.fork() == 0:
                connection.close()
                _own_memory()
                work(_connect(address), side)
                os._exit(0)


def work(connection: Connection, side: str) -> None:
    """Do what the benchmark asks for, until it hangs up."""
    connection.send(os.getpid())
    worker = Worker(side)
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer = (True, getattr(worker, method)(**arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        connection.send(answer)


class Worker:
    """One worker of a group."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._rank = 0
        self._calls: dict[str, Callable[[], Any]] = {}

    def prepare(self, backend: str) -> None:
        """Do what a program has to do before ``init_rpc`` can be called for ``backend``."""
        if self._side == "stock" and backend == "FAULTY_TENSORPIPE":
            import torch.distributed.rpc._testing  # noqa: F401 - registers it

    def start(
        self,
        backend: str,
        rank: int,
        world_size: int | None,
        port: int,
        at: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> Span:
        """Call ``init_rpc`` at the time ``at``, with ``options`` that only our packages know."""
        from torch.distributed import rpc

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        name = f"worker{rank}"
        _sleep_until(at)
        begin = time.perf_counter()
        if backend == "TENSORPIPE":
            rpc.init_rpc(name, rank=rank, world_size=world_size)
        else:
            registry = rpc.backend_registry
            member = registry.BackendType[backend]  # stock torch's rpc.BackendType lacks some
            rpc.init_rpc(
                name,
                backend=member,
                rank=rank,
                world_size=world_size,
                rpc_backend_options=registry.construct_rpc_backend_options(
                    member, **(_FAULTY if backend == "FAULTY_TENSORPIPE" else options or {})
                ),
            )
        end = time.perf_counter()
        self._rank = rank
        self._check(rpc)
        return begin, end

    def greet(self, ranks: list[int], at: float = 0.0) -> Span:
        """Call a no-op once on each of ``ranks``, all at once."""
        from torch.distributed import rpc

        _sleep_until(at)
        begin = time.perf_counter()
        answers = [rpc.rpc_async(f"worker{rank}", noop) for rank in ranks]
        for answer in answers:
            answer.wait()
        return begin, time.perf_counter()

    def block(self, kind: str, calls: int, unmeasured: int) -> float:
        """Return the median time, in seconds, of ``calls`` calls of ``kind``, after some others."""
        call = self._call(kind)
        for _ in range(unmeasured):
            call()
        times = []
        for _ in range(calls):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def flood(self, calls: int, in_flight: int) -> float:
        """Return the time of a no-op, in seconds, while ``in_flight`` of them are under way."""
        from torch.distributed.rpc import rpc_async

        waiting: collections.deque[Any] = collections.deque()
        begin = time.perf_counter()
        for _ in range(calls):
            waiting.append(rpc_async("worker1", noop))
            if len(waiting) == in_flight:
                waiting.popleft().wait()
        while waiting:
            waiting.popleft().wait()
        return (time.perf_counter() - begin) / calls

    def processor_time(self) -> float:
        """Return the seconds that this process has had of a processor, system calls included."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def stop(self, at: float = 0.0) -> Span:
        """Call ``shutdown`` at the time ``at``."""
        from torch.distributed import rpc

        self._calls.clear()
        _sleep_until(at)
        begin = time.perf_counter()
        rpc.shutdown()
        return begin, time.perf_counter()

    def _call(self, kind: str) -> Callable[[], Any]:
        import torch
        from torch.distributed.rpc import rpc_sync

        if not self._calls:
            small, large = torch.ones(2, 2), torch.ones(1 << 18)  # float32: 16 bytes and 1 MiB
            huge = torch.empty(1 << 24)  # 64 MiB, which take no memory until they are written to
            self._calls = {
                "no-op": lambda: rpc_sync("worker1", noop),
                "torch.add": lambda: rpc_sync("worker1", torch.add, args=(small, small)),
                "echo of 1 MiB": lambda: rpc_sync("worker1", echo, args=(large,)),
                "echo of 64 MiB": lambda: rpc_sync("worker1", echo, args=(huge,)),
                "64 MiB one way": lambda: rpc_sync("worker1", swallow, args=(huge,)),
                "no-op on oneself": lambda: rpc_sync("worker0", noop),
            }
        return self._calls[kind]

    def _check(self, rpc: Any) -> None:
        """Make sure that what is measured is what it is said to be."""
        module = type(rpc.api._get_current_rpc_agent()).__module__
        if module.startswith("rpc_backend") != (self._side == "ours"):
            raise AssertionError(f"the agent of side {self._side!r} is from {module}")
        if self._side == "stock" and "rpc_backends_core" in sys.modules:
            raise AssertionError("stock torch runs with rpc_backends_core in it")


def noop() -> None:
    """Run on the callee: nothing."""


def echo(value: Any) -> Any:
    """Run on the callee: return the argument."""
    return value


def swallow(value: Any) -> None:
    """Run on the callee: take the argument."""


def _own_memory() -> None:
    """Copy the pages that a fork shares with its parent, so that no copying is measured later.

    A process that was not forked has none to copy, and the side that touches more of them is not slower.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            madvise(
                begin, end - begin, _MADV_POPULATE_WRITE
            )  # an old kernel refuses, which is fine


def _connect(address: str) -> Connection:
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(address)
    return Connection(channel.detach())


def _sleep_until(at: float) -> None:
    pause = at - time.perf_counter()
    if pause > 0:
        time.sleep(pause)
