"""The store requests of a start: a fixed number per worker, whatever the size of the group."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from rpc_backend_zeromq._native import Transport, TransportError, make_keys
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from support import steps
from support.stores import CountingStore
from support.workers import Worker, WorkerContext, WorkerError, Workers
from support.zeromq import eventually, exercise, join, metric

pytestmark = pytest.mark.slow

SIZES = (2, 4, 10)
URL = "counted://127.0.0.1"


def meet_at_a_counting_store(me: WorkerContext, port: int) -> None:
    """Register ``counted://``: a store that counts this worker's requests to the test's store."""

    def handler(url: str, timeout: timedelta = timedelta(seconds=60), **_: Any) -> Any:
        there = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        me.memory["store"] = CountingStore(there)
        yield me.memory["store"], me.index, me.size

    register_rendezvous_handler("counted", handler)


def requests(me: WorkerContext) -> int:
    """Return the number of requests that this worker has made."""
    return int(me.memory["store"].kinds.total())


def start(size: int, *, dynamic: bool = False) -> list[int]:
    """Start and stop a group; return the number of store requests of each worker's start."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Workers(size, seconds=120) as workers:
        workers.run(meet_at_a_counting_store, store.port)
        if dynamic:
            for worker in workers:
                worker.call(join, URL, dynamic=True)
        else:
            workers.run(join, URL)
        counts: list[int] = workers.run(requests)
        names = {worker.name: worker.name for worker in workers}
        assert workers[0].call(steps.call_all) == names
        workers.run(steps.leave)
    return counts


def test_requests_of_a_static_start_do_not_grow() -> None:
    counts = {size: start(size) for size in SIZES}
    least = min(counts[SIZES[-1]])
    # The last worker to arrive completes the group, or the exchange of addresses, for all workers. This
    # takes a few more requests, as many in a large group as in a small one.
    more = {size: sum(each) - least * size for size, each in counts.items()}
    assert len(set(more.values())) == 1, counts
    assert 0 < more[2] < least, counts


def test_requests_of_a_dynamic_join_do_not_grow() -> None:
    counts = start(10, dynamic=True)
    assert len(set(counts)) == 1, counts


def is_admitted(worker: Worker) -> bool:
    try:
        worker.call(exercise, "worker0")
    except WorkerError as error:
        # The connection ends in the handshake, or is reset before it.
        assert "handshake" in str(error) or "connection reset" in str(error)
        return False
    return True


def connect_strangers(address: dict[str, Any], count: int, stopped: threading.Event) -> None:
    """Connect to a worker with so many unknown keys, again and again; until `stopped`."""
    strangers = []
    for _ in range(count):
        public, private = make_keys()
        stranger = Transport(
            public_key=public,
            secret_key=private,
            handshake_timeout=60,
            **ZeroMQRpcBackendOptions(heartbeat_timeout=60).native(),
        )
        stranger.start(99)
        stranger.learn(0, address["tcp"][0], address["public_key"].encode())
        with contextlib.suppress(TransportError):  # it may be refused before the message is queued
            stranger.send(0, [b"let me in"], False)
        strangers.append(stranger)
        if len(strangers) > 20:
            strangers.pop(0).close(0)
    stopped.wait()
    for stranger in strangers:
        stranger.close(0)


def test_strangers_cause_few_requests_and_exclude_no_worker() -> None:
    strangers = 400
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Workers(2, seconds=120) as workers, contextlib.ExitStack() as stack:
        workers.run(meet_at_a_counting_store, store.port)
        workers[0].call(join, URL, dynamic=True, unix_sockets=False)
        before, began = workers[0].call(requests), time.monotonic()
        record = json.loads(dist.PrefixStore("rpc_backends/0", store).get("record/1"))
        address = json.loads(record["address"][record["address"].index("{") :])
        running = threading.Event()
        stack.callback(running.set)
        threading.Thread(target=connect_strangers, args=(address, strangers, running)).start()

        workers[1].call(join, URL, dynamic=True, unix_sockets=False)
        # A burst of strangers can also end a worker's handshake. Then its call fails; the next succeeds.
        eventually(lambda: is_admitted(workers[1]), lambda: "worker1 is admitted")

        def refused() -> int:
            return workers[0].call(metric, "transport.zeromq.refused")

        eventually(lambda: refused() >= strangers, lambda: "all strangers are refused")
        lookups = workers[0].call(requests) - before
        took = time.monotonic() - began
        running.set()
        workers.run(steps.leave)
    # A lookup is one request, at most every 0.05 s; worker1's join adds a few.
    assert lookups <= took / 0.05 + 20
