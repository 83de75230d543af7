"""A transport that moves device memory itself gets device pointers, and memory of the receiver's device.

The accelerator is the tests' own, whose streams run behind; see `support.late_device`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_kit import error_of, in_worker, make, no_current_agent, start
from device_transport import DeviceTransport, build
from torch.distributed import rpc

from support import late_device

pytestmark = pytest.mark.slow

#: Seconds that an operation of the accelerator takes.
DELAY = 0.02
#: Elements of a float tensor of 8 MiB, which other transports get in pieces.
ELEMENTS = 2 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("device_transport"))


@contextlib.contextmanager
def two_workers(library: Path) -> Iterator[tuple[Any, Any, DeviceTransport]]:
    """Yield agents "a" and "b", and the transport of "b". "a" maps late:0 to late:1 of "b"."""
    late_device.load()
    late_device.set_delay(0)
    transports = DeviceTransport(library), DeviceTransport(library)
    a, b = make(transports[0], "a", 0), make(transports[1], "b", 1)
    addresses = a.listen(), b.listen()
    a.learn(1, "b", addresses[1])
    b.learn(0, "a", addresses[0])
    a.add_member("b", 1)
    b.add_member("a", 0)
    a.set_devices({"b": [("late:0", "late:1"), ("late:1", "late:0")]}, {}, ["late:0", "late:1"])
    b.set_devices({}, {0: [("late:1", "late:0")]}, ["late:1"])
    start(b)
    start(a)
    try:
        yield a, b, transports[1]
    finally:
        late_device.set_delay(0)
        no_current_agent()
        a.shutdown()
        b.shutdown()


def double(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    return str(x.device), x + x


def moved(agent: Any) -> tuple[int, int]:
    """Return the bytes that have come to an agent as device memory, and its largest host part."""
    metrics = agent.get_metrics()
    return int(metrics["transport.moved_bytes"]), int(metrics["transport.largest_host_part"])


@in_worker
def test_a_tensor_is_moved_from_device_to_device(me: Any, library: Path) -> None:
    with two_workers(library) as (a, b, _):
        x = torch.arange(float(ELEMENTS), device="late:0")
        device, answer = rpc.rpc_sync("b", double, args=(x,))
        assert (device, str(answer.device)) == ("late:1", "late:0")
        assert answer.cpu().equal(2 * torch.arange(float(ELEMENTS)))
        for agent in (a, b):
            as_device, on_host = moved(agent)
            assert as_device == 4 * ELEMENTS
            assert on_host < 4096


@in_worker
def test_a_moved_tensor_has_the_values_of_the_call(me: Any, library: Path) -> None:
    """The call waits for the stream, and what comes later on the stream does not change it."""
    with two_workers(library) as (_, b, _):
        late_device.set_delay(DELAY)
        x = torch.zeros(1000, device="late:0").add_(1).add_(1)
        future = rpc.rpc_async("b", double, args=(x,))
        x.fill_(100)
        assert not future.done()
        assert (future.wait()[1] + 1).cpu().eq(5).all()
        assert moved(b)[0] == 4000


@in_worker
def test_moved_memory_is_used_again_without_mixing(me: Any, library: Path) -> None:
    with two_workers(library) as (_, _, _):
        late_device.set_delay(DELAY / 20)
        for turn in range(3):
            futures = []
            for number in range(10):
                x = torch.zeros(1 << 16, device="late:0").add_(number + turn)
                futures.append(rpc.rpc_async("b", double, args=(x,)))
                del x
            for number, future in enumerate(futures):
                assert future.wait()[1].cpu().eq(2 * (number + turn)).all()


@in_worker
def test_a_device_that_is_not_for_rpc_gets_no_memory(me: Any, library: Path) -> None:
    with two_workers(library) as (_, _, _):
        future = rpc.rpc_async("b", double, args=(torch.ones(3, device="late:1"),))
        assert "which this worker does not use for RPC" in error_of(future)


@in_worker
def test_memory_that_is_not_the_allocators_is_refused(me: Any, library: Path) -> None:
    with two_workers(library) as (_, _, transport):
        transport.forge()
        future = rpc.rpc_async("b", double, args=(torch.ones(3, device="late:0"),))
        assert "did not get from its allocator" in error_of(future)


@in_worker
def test_tensors_on_the_cpu_go_as_host_memory(me: Any, library: Path) -> None:
    with two_workers(library) as (a, b, _):
        a.set_devices({"b": [("cpu", "late:1")]}, {}, ["late:0", "late:1"])
        device, answer = rpc.rpc_sync("b", double, args=(torch.ones(1 << 16),))
        assert (device, str(answer.device)) == ("late:1", "late:0")
        assert answer.cpu().eq(2).all()
        assert moved(b)[0] == 0
