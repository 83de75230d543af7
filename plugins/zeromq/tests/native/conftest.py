"""Fixtures for the tests of the transport in C++, with the classes of native_workers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the tests are imported by their paths

from native_workers import Child, Worker

MakeWorker = Callable[..., Worker]


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def encrypted(request: pytest.FixtureRequest) -> bool:
    """Return whether connections are encrypted; both values in turn."""
    return bool(request.param)


@pytest.fixture
def make() -> Iterator[MakeWorker]:
    """Yield a function that makes workers, which are closed after the test."""
    made: list[Worker] = []

    def make_worker(worker_id: int, encrypted: bool = False, **settings: Any) -> Worker:
        worker = Worker(worker_id, encrypted=encrypted, **settings)
        made.append(worker)
        return worker

    yield make_worker
    for worker in made:
        worker.transport.close(0)


@pytest.fixture
def where(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that gives an endpoint to listen on, for "tcp", "tcp6" or "ipc"."""
    count = iter(range(1000))

    def endpoint(medium: str) -> str:
        if medium == "tcp6":
            try:
                with socket.socket(socket.AF_INET6) as trial:
                    trial.bind(("::1", 0))
            except OSError:
                pytest.skip("there is no IPv6 here")
        return {
            "tcp": "tcp://127.0.0.1:*",
            "tcp6": "tcp://[::1]:*",
            "ipc": f"ipc://{tmp_path}/{next(count)}",
        }[medium]

    return endpoint


@pytest.fixture
def pair(make: MakeWorker, encrypted: bool) -> tuple[Worker, Worker]:
    """Return workers 0 and 1, which have learned each other."""
    worker0, worker1 = (make(n, encrypted).listen("tcp://127.0.0.1:*") for n in (0, 1))
    return worker0.learn(worker1), worker1.learn(worker0)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Yield a function that starts processes, which are killed after the test."""
    children: list[Child] = []

    def start_child(code: str, *arguments: Any) -> Child:
        children.append(Child(code, *arguments))
        return children[-1]

    yield start_child
    for child in children:
        child.kill()
