"""Tensors on a CUDA device over each engine that takes device maps; a machine without one skips this.

`test_devices.py` tests placement, streams and refusals with a simulated accelerator. Here are the parts
that only CUDA has: memory that UCX moves itself, autograd, and tensors that are not plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

#: Both workers use the same device, so that one is enough.
MAPS = {name: {"cuda:0": "cuda:0"} for name in ("worker0", "worker1")}
#: With these options, UCX moves CUDA memory itself.
DIRECT = {"device_memory": {"cuda": "cuda"}}
#: The engines on the agent of this project. Torch's TensorPipe ends the process if it has to send an
#: empty, a sparse or a quantized tensor on a CUDA device (seen with torch 2.11).
OURS = ["ZEROMQ", "UCX", "UCX direct"]
#: Elements of a float tensor that ZEROMQ and UCX send in many pieces.
LARGE = (64 << 20) // 4 + 1000


def count_devices(me: WorkerContext) -> int:
    return torch.cuda.device_count()


def join(me: WorkerContext, url: str, engine: str) -> None:
    backend, _, is_direct = engine.partition(" ")
    options = DIRECT if is_direct else {}
    steps.join(me, url, backend=backend, device_maps=MAPS, **options)


@pytest.fixture(scope="module", params=["TENSORPIPE", *OURS])
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Start two workers that share the first CUDA device."""
    url = f"file://{tmp_path_factory.mktemp('group')}/store"
    with Workers(2, seconds=120) as workers:
        if not workers[0].call(count_devices):
            pytest.skip("it needs a CUDA device, and this machine has none")
        workers.run(join, url, request.param)
        yield workers
        workers.run(steps.leave)


# --- what the callee runs ---------------------------------------------------------------------------


def device_and_double(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    return str(x.device), x + x


def kinds_of(*values: torch.Tensor) -> list[tuple[str, str, list[int]]]:
    return [(str(value.device), str(value.dtype), list(value.shape)) for value in values]


def send_back(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return values


def ones_on_device(size: int) -> torch.Tensor:
    return torch.ones(size, device="cuda:0", requires_grad=True)


def product_with(weight: rpc.RRef[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return weight.local_value() * x


def value_of(weight: rpc.RRef[torch.Tensor]) -> torch.Tensor:
    return weight.local_value().detach()


def change_first(views: list[torch.Tensor]) -> list[float]:
    views[0].fill_(7)
    return views[1].tolist()  # type: ignore[no-any-return]


@torch.jit.script
def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


# --- plain tensors ----------------------------------------------------------------------------------


def send_large(me: WorkerContext) -> None:
    x = torch.arange(float(LARGE), device="cuda:0")
    for to in ("worker1", "worker0"):
        device, double = rpc.rpc_sync(to, device_and_double, args=(x,))
        assert (device, str(double.device)) == ("cuda:0", "cuda:0")
        assert double.equal(2 * x)


def test_a_large_tensor_goes_there_and_back(group: Any) -> None:
    """To the other worker, and to the caller itself."""
    group[0].call(send_large)


def send_mixed(me: WorkerContext) -> None:
    mixed = (
        torch.ones(3),
        torch.arange(6.0, device="cuda:0").view(2, 3).t(),
        torch.ones(100, 100, device="cuda:0")[::7, ::9],
        torch.arange(5, device="cuda:0", dtype=torch.bfloat16),
        torch.arange(5, device="cuda:0").to(torch.complex64),
        torch.arange(5, device="cuda:0").to(torch.float8_e4m3fn),
        torch.tensor(True, device="cuda:0"),
    )
    assert rpc.rpc_sync("worker1", kinds_of, args=mixed) == kinds_of(*mixed)
    for sent, back in zip(mixed, rpc.rpc_sync("worker1", send_back, args=mixed), strict=True):
        assert sent.device == back.device
        assert sent.cpu().to(torch.complex64).equal(back.cpu().to(torch.complex64))


def test_dtypes_strides_and_cpu_tensors_travel_together(group: Any) -> None:
    group[0].call(send_mixed)


def send_empty(me: WorkerContext) -> None:
    x = torch.ones(3, 0, device="cuda:0")
    (back,) = rpc.rpc_sync("worker1", send_back, args=(x,))
    assert (str(back.device), back.shape) == ("cuda:0", x.shape)


@pytest.mark.parametrize("group", OURS, indirect=True)
def test_an_empty_tensor_on_a_device_travels(group: Any) -> None:
    group[0].call(send_empty)


def keep_views(me: WorkerContext) -> None:
    base = torch.arange(8.0, device="cuda:0")
    second = rpc.rpc_sync("worker1", change_first, args=([base[:4], base[2:]],))
    assert second == [7.0, 7.0, 4.0, 5.0, 6.0, 7.0]


def test_views_of_one_memory_share_memory_at_the_callee(group: Any) -> None:
    group[0].call(keep_views)


# --- streams ----------------------------------------------------------------------------------------


def send_unfinished(me: WorkerContext) -> None:
    for number in range(5):
        torch.cuda._sleep(200_000_000)  # cycles: about 0.1 s
        x = torch.full((LARGE,), float(number), device="cuda:0")
        future = rpc.rpc_async("worker1", device_and_double, args=(x,))
        x.fill_(100)
        assert future.wait()[1].eq(2 * number).all()


@pytest.mark.parametrize("group", OURS, indirect=True)
def test_a_call_sends_what_the_callers_stream_would_see(group: Any) -> None:
    """Neither unfinished work before the call nor work after it spoils the values.

    TENSORPIPE is torch's engine, which does not promise the second.
    """
    group[0].call(send_unfinished)


def send_from_another_stream(me: WorkerContext) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        x = torch.ones(LARGE, device="cuda:0")
        _, double = rpc.rpc_sync("worker1", device_and_double, args=(x,))
        assert (double + 1).eq(3).all()


def test_the_current_stream_counts(group: Any) -> None:
    group[0].call(send_from_another_stream)


def send_at_the_same_time(me: WorkerContext) -> None:
    futures = []
    for number in range(50):
        x = torch.zeros(1 << 18, device="cuda:0").add_(number)
        futures.append(rpc.rpc_async("worker1", device_and_double, args=(x,)))
        del x  # its memory is used again
    for number, future in enumerate(futures):
        assert future.wait()[1].eq(2 * number).all()


def test_many_calls_at_the_same_time_keep_their_values(group: Any) -> None:
    group[0].call(send_at_the_same_time)


# --- what torch builds on RPC -------------------------------------------------------------------------


def use_script_and_rref(me: WorkerContext) -> None:
    x = torch.ones(5, device="cuda:0")
    assert rpc.rpc_sync("worker1", scripted, args=(x, x)).tolist() == [2.0] * 5
    rref = rpc.remote("worker1", torch.add, args=(x, 2))
    assert (str(rref.to_here().device), rref.to_here().tolist()) == ("cuda:0", [3.0] * 5)


def test_torchscript_and_rrefs_take_tensors_on_devices(group: Any) -> None:
    group[0].call(use_script_and_rref)


def train(me: WorkerContext) -> None:
    # It imports much, which the process that collects the tests does not need.
    from torch.distributed.optim import DistributedOptimizer

    weight = rpc.remote("worker1", ones_on_device, args=(4,))
    optimizer = DistributedOptimizer(torch.optim.SGD, [weight], lr=0.5)
    x = torch.arange(4.0, device="cuda:0", requires_grad=True)
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync("worker1", product_with, args=(weight, x)).sum()
        dist_autograd.backward(context, [loss])
        gradient = dist_autograd.get_gradients(context)[x]
        optimizer.step(context)
    assert (str(gradient.device), gradient.tolist()) == ("cuda:0", [1.0] * 4)
    value = rpc.rpc_sync("worker1", value_of, args=(weight,))
    assert (str(value.device), value.tolist()) == ("cuda:0", [1.0, 0.5, 0.0, -0.5])


def test_distributed_autograd_and_optimizer_work_on_devices(group: Any) -> None:
    group[0].call(train)


def send_sparse(me: WorkerContext) -> None:
    indices = torch.tensor([[0, 1, 3], [2, 0, 1]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([3.0, 4.0, 5.0]), (4, 3), device="cuda:0")
    x = x.coalesce()  # torch's futures refuse other ones
    (back,) = rpc.rpc_sync("worker1", send_back, args=(x,))
    assert (str(back.device), back.layout) == ("cuda:0", torch.sparse_coo)
    assert back.to_dense().equal(x.to_dense())


@pytest.mark.parametrize("group", OURS, indirect=True)
def test_a_sparse_tensor_on_a_device_travels(group: Any) -> None:
    group[0].call(send_sparse)


def send_quantized(me: WorkerContext) -> None:
    x = torch.quantize_per_tensor(torch.arange(4.0, device="cuda:0"), 0.5, 2, torch.qint8)
    (back,) = rpc.rpc_sync("worker1", send_back, args=(x,))
    assert (str(back.device), back.dtype, back.q_scale()) == ("cuda:0", torch.qint8, 0.5)
    assert back.dequantize().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("group", OURS, indirect=True)
def test_a_quantized_tensor_on_a_device_travels(group: Any) -> None:
    group[0].call(send_quantized)


# --- memory of devices that UCX moves itself ------------------------------------------------------------


def moved_bytes() -> int:
    return int(
        rpc.api._get_current_rpc_agent().get_metrics()["transport.ucx.device_bytes_received"]
    )


def count_moved_bytes(me: WorkerContext) -> None:
    here, there = moved_bytes(), rpc.rpc_sync("worker1", moved_bytes)
    x = torch.arange(float(LARGE), device="cuda:0")
    _, double = rpc.rpc_sync("worker1", device_and_double, args=(x,))
    assert double.equal(2 * x)
    assert rpc.rpc_sync("worker1", moved_bytes) - there == x.nbytes
    assert moved_bytes() - here == x.nbytes


@pytest.mark.parametrize("group", ["UCX direct"], indirect=True)
def test_ucx_moves_cuda_memory_itself(group: Any) -> None:
    group[0].call(count_moved_bytes)
