"""Tensors on accelerators, over the agent of this project: placement, streams, and refusals.

The accelerator is the tests' own, whose streams run behind: a missing wait shows as a wrong value. See
`support.late_device`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import late_device, steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

#: worker0 maps its devices crosswise, and its own names for calls to itself.
MAPS = {
    "worker0": {"late:0": "late:0", "late:1": "late:1"},
    "worker1": {"late:0": "late:1", "late:1": "late:0"},
}
#: Seconds that an operation of the accelerator takes in the tests of streams.
DELAY = 0.03


#: With this option, UCX moves the memory of the accelerator itself: it is the host's.
DIRECT = {"device_memory": {"late": "host"}}


def join(me: WorkerContext, url: str, backend: str, **options: Any) -> None:
    late_device.load()
    backend, _, is_direct = backend.partition(" ")
    more = DIRECT if is_direct else {}
    only = {0: {"device_maps": MAPS}} if not options else {0: options}
    steps.join(me, url, backend=backend, only={0: only[0] | more, 1: more})


@pytest.fixture(scope="module", params=["ZEROMQ", "UCX", "UCX direct"])
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Start two workers, where worker0 has device maps."""
    late_device.library()
    url = f"file://{tmp_path_factory.mktemp('group')}/store"
    with Workers(2, seconds=300) as workers:
        workers.run(join, url, request.param)
        yield workers
        workers.run(steps.leave)


def run(group: Any, step: Any) -> None:
    """Run a step in worker0, with an accelerator that is fast again."""
    group.run(set_delay, 0.0)
    group[0].call(step)


def set_delay(me: WorkerContext, seconds: float) -> None:
    late_device.set_delay(seconds)


# --- what the callee runs ---------------------------------------------------------------------------


def device_and_double(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    return str(x.device), x + x


def double_slowly(x: torch.Tensor) -> torch.Tensor:
    late_device.set_delay(DELAY)
    y = x + x
    late_device.set_delay(0)
    return y


def zeros_on_its_other_device() -> torch.Tensor:
    return torch.zeros(3, device="late:0")


def change_first(views: list[torch.Tensor]) -> tuple[bool, list[float]]:
    views[0].fill_(7)
    same = views[0].untyped_storage().data_ptr() == views[1].untyped_storage().data_ptr()
    return same, views[1].cpu().tolist()


def devices_of(*values: torch.Tensor) -> list[str]:
    return [str(value.device) for value in values]


def on_device(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((size,), value, device="late:1")


@torch.jit.script
def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


# --- placement --------------------------------------------------------------------------------------


def there_and_back(me: WorkerContext) -> None:
    x = torch.arange(1000.0, device="late:0")
    device, double = rpc.rpc_sync("worker1", device_and_double, args=(x,))
    assert (device, str(double.device)) == ("late:1", "late:0")
    assert double.cpu().equal(2 * torch.arange(1000.0))


def test_a_tensor_goes_to_the_mapped_device_and_back(group: Any) -> None:
    run(group, there_and_back)


def keep_views(me: WorkerContext) -> None:
    base = torch.arange(8.0, device="late:0")
    same, second = rpc.rpc_sync("worker1", change_first, args=([base[:4], base[2:]],))
    assert same or second[:2] == [7.0, 7.0]
    assert second == [7.0, 7.0, 4.0, 5.0, 6.0, 7.0]


def test_views_of_one_memory_share_memory_at_the_callee(group: Any) -> None:
    run(group, keep_views)


def send_many_kinds(me: WorkerContext) -> None:
    mixed = (
        torch.ones(3),
        torch.ones(0, device="late:0"),
        torch.ones(2, 3, device="late:1").t(),
        torch.ones(100, 100, device="late:0")[::7, ::9],
    )
    assert rpc.rpc_sync("worker1", devices_of, args=mixed) == ["cpu", "late:1", "late:0", "late:1"]
    for tensor in mixed:
        _, double = rpc.rpc_sync("worker1", device_and_double, args=(tensor,))
        assert double.cpu().equal(2 * tensor.cpu())


def test_empty_strided_and_cpu_tensors_travel_together(group: Any) -> None:
    run(group, send_many_kinds)


def call_oneself(me: WorkerContext) -> None:
    x = torch.ones(5, device="late:1")
    device, double = rpc.rpc_sync("worker0", device_and_double, args=(x,))
    assert (device, str(double.device)) == ("late:1", "late:1")
    assert double.cpu().eq(2).all()


def test_a_call_to_oneself_needs_a_map_too(group: Any) -> None:
    run(group, call_oneself)


def use_script(me: WorkerContext) -> None:
    x = torch.ones(5, device="late:0")
    result = rpc.rpc_sync("worker1", scripted, args=(x, x))
    assert (str(result.device), result.cpu().tolist()) == ("late:0", [2.0] * 5)


def test_torchscript_functions_get_tensors_on_devices(group: Any) -> None:
    run(group, use_script)


def use_rref(me: WorkerContext) -> None:
    rref = rpc.remote("worker1", on_device, args=(3.0,))
    rref.rpc_sync().add_(1)
    value = rref.to_here()
    assert (str(value.device), value.cpu().tolist()) == ("late:0", [4.0] * 4)


def test_an_rref_holds_a_tensor_on_a_device(group: Any) -> None:
    run(group, use_rref)


def ask_for_devices(me: WorkerContext) -> None:
    agent = rpc.api._get_current_rpc_agent()
    device_map = agent._get_device_map(rpc.get_worker_info("worker1"))
    assert {str(mine): str(theirs) for mine, theirs in device_map.items()} == MAPS["worker1"]


def test_the_agent_knows_its_device_map(group: Any) -> None:
    run(group, ask_for_devices)


def send_to_an_accelerator(me: WorkerContext) -> None:
    device, double = rpc.rpc_sync("worker1", device_and_double, args=(torch.arange(4.0),))
    assert (device, str(double.device)) == ("late:1", "cpu")
    assert double.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_map_may_lead_from_the_cpu_to_a_device(tmp_path: Path) -> None:
    late_device.library()
    with Workers(2, seconds=60) as workers:
        maps = {"worker1": {"cpu": "late:1"}}
        workers.run(join, f"file://{tmp_path}/store", "ZEROMQ", device_maps=maps)
        workers[0].call(send_to_an_accelerator)
        workers.run(steps.leave)


def join_as_on_tensorpipe(me: WorkerContext, url: str) -> None:
    """Start RPC as a program that was written for TENSORPIPE does."""
    late_device.load()
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    if me.index == 0:
        maps = {name: map for name, map in MAPS.items() if name == "worker0"}
        options = rpc.TensorPipeRpcBackendOptions(init_method=url, device_maps=maps)
        options.set_device_map("worker1", MAPS["worker1"])
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, rpc_backend_options=options)


@pytest.mark.parametrize("backend", ["ZEROMQ", "UCX"])
def test_an_override_carries_tensorpipes_device_maps_over(tmp_path: Path, backend: str) -> None:
    late_device.library()
    with Workers(2, seconds=60, env={"RPC_BACKENDS_OVERRIDE": backend}) as workers:
        workers.run(join_as_on_tensorpipe, f"file://{tmp_path}/store")
        workers[0].call(ask_for_devices)
        workers[0].call(there_and_back)
        workers[0].call(call_oneself)
        workers.run(steps.leave)


# --- streams ----------------------------------------------------------------------------------------


def send_unfinished(me: WorkerContext) -> None:
    x = torch.zeros(1000, device="late:0")
    for device in range(late_device.COUNT):
        torch.late.synchronize(device)  # type: ignore[attr-defined]
    before = late_device.operations()
    late_device.allow(0)
    # A call that waits for the operations gets them at last, so that it returns and the test fails.
    release = threading.Timer(30, late_device.allow, [-1])
    release.start()
    for _ in range(3):
        x.add_(1)
    future = rpc.rpc_async("worker1", device_and_double, args=(x,))
    ran = late_device.operations() - before
    x.fill_(100)
    release.cancel()
    late_device.allow(-1)
    assert future.wait()[1].cpu().eq(6).all()
    assert ran == 0


def test_a_call_sees_what_the_callers_stream_would_see(group: Any) -> None:
    """The call does not wait for the stream, and does not see what is put on it later."""
    run(group, send_unfinished)


def send_from_another_stream(me: WorkerContext) -> None:
    late_device.set_delay(DELAY)
    with torch.Stream("late:0"):
        x = torch.zeros(1000, device="late:0").add_(1)
        _, double = rpc.rpc_sync("worker1", device_and_double, args=(x,))
        assert (double + 1).cpu().eq(3).all()


def test_the_current_stream_counts(group: Any) -> None:
    run(group, send_from_another_stream)


def get_unfinished(me: WorkerContext) -> None:
    for _ in range(3):
        x = torch.ones(1000, device="late:0")
        double = rpc.rpc_sync("worker1", double_slowly, args=(x,))
        assert (double + 1).cpu().eq(3).all()


def test_an_answer_waits_for_the_callees_streams(group: Any) -> None:
    run(group, get_unfinished)


def use_in_callback(me: WorkerContext) -> None:
    late_device.set_delay(DELAY)
    x = torch.ones(1000, device="late:0")
    future = rpc.rpc_async("worker1", device_and_double, args=(x,))
    then = future.then(lambda done: done.value()[1] + 1)
    assert then.wait().cpu().eq(3).all()


def test_a_callback_sees_the_finished_answer(group: Any) -> None:
    run(group, use_in_callback)


def send_at_the_same_time(me: WorkerContext) -> None:
    late_device.set_delay(DELAY / 10)
    futures = []
    for number in range(20):
        x = torch.zeros(1 << 16, device="late:0").add_(number)
        futures.append(rpc.rpc_async("worker1", device_and_double, args=(x,)))
        del x  # its memory is used again
    for number, future in enumerate(futures):
        assert future.wait()[1].cpu().eq(2 * number).all()


def test_many_calls_at_the_same_time_keep_their_values(group: Any) -> None:
    run(group, send_at_the_same_time)


# --- large tensors ----------------------------------------------------------------------------------

#: Elements of a float tensor that is sent in four pieces of 4 MiB and a short one.
LARGE = (16 << 20) // 4 + 1000


def send_with_a_stopped_device(me: WorkerContext) -> None:
    """Let one piece be copied and no more."""
    x = torch.arange(float(LARGE), device="late:0")
    torch.late.synchronize(0)  # type: ignore[attr-defined]
    late_device.allow(1)
    me.memory["future"] = rpc.rpc_async("worker1", device_and_double, args=(x,))


def wait_for_a_piece(me: WorkerContext) -> None:
    agent = rpc.api._get_current_rpc_agent()
    until = time.monotonic() + 30
    while agent.get_metrics()["agent.unfinished_messages"] != "1":
        assert time.monotonic() < until
        time.sleep(0.005)


def let_the_device_run(me: WorkerContext) -> None:
    future = me.memory.pop("future")
    assert not future.done()
    late_device.allow(-1)
    device, double = future.wait()
    assert (device, str(double.device)) == ("late:1", "late:0")
    assert double.cpu().equal(2 * torch.arange(float(LARGE)))


@pytest.mark.parametrize("group", ["ZEROMQ", "UCX"], indirect=True)
def test_the_first_piece_arrives_before_the_last_is_copied(group: Any) -> None:
    """The caller's device copies no second piece until the callee has the first."""
    group.run(set_delay, 0.0)
    group[0].call(send_with_a_stopped_device)
    group[1].call(wait_for_a_piece)
    group[0].call(let_the_device_run)


def send_large_ones_from_threads(me: WorkerContext) -> None:
    with ThreadPoolExecutor(4) as threads:
        for number, double in enumerate(threads.map(double_there, range(8))):
            assert double.cpu().eq(2 * number).all()


def double_there(number: int) -> torch.Tensor:
    x = torch.zeros(LARGE, device="late:0").add_(number)
    future = rpc.rpc_async("worker1", device_and_double, args=(x,))
    x.fill_(100)
    double: torch.Tensor = future.wait()[1]
    return double


def test_pieces_of_several_calls_do_not_mix(group: Any) -> None:
    group.run(set_delay, DELAY / 10)
    group[0].call(send_large_ones_from_threads)


# --- memory of devices that UCX moves itself ---------------------------------------------------------


def moved_bytes() -> int:
    return int(
        rpc.api._get_current_rpc_agent().get_metrics()["transport.ucx.device_bytes_received"]
    )


def count_moved_bytes(me: WorkerContext) -> None:
    here, there = moved_bytes(), rpc.rpc_sync("worker1", moved_bytes)
    x = torch.arange(float(LARGE), device="late:0")
    device, double = rpc.rpc_sync("worker1", device_and_double, args=(x,))
    assert (device, str(double.device)) == ("late:1", "late:0")
    assert double.cpu().equal(2 * torch.arange(float(LARGE)))
    assert rpc.rpc_sync("worker1", moved_bytes) - there == x.nbytes
    assert moved_bytes() - here == x.nbytes


@pytest.mark.parametrize("group", ["UCX direct"], indirect=True)
def test_ucx_moves_memory_of_devices_itself(group: Any) -> None:
    run(group, count_moved_bytes)


def test_workers_with_different_device_memory_do_not_start(tmp_path: Path) -> None:
    late_device.library()
    with Workers(2, seconds=60) as workers:
        failures = workers.errors(join_with_device_memory, f"file://{tmp_path}/store", ["host", ""])
    assert "worker 'worker0' has device_memory for late" in failures[0].text
    assert "worker 'worker1' (rank 1) for no device" in failures[0].text


def test_memory_that_ucx_cannot_move_is_refused_with_what_it_can(tmp_path: Path) -> None:
    late_device.library()
    with Workers(2, seconds=60) as workers:
        failures = workers.errors(join_with_device_memory, f"file://{tmp_path}/store", ["rocm"] * 2)
    for failure in failures:
        assert "device_memory has 'late': 'rocm', and UCX moves only this memory here: host" in (
            failure.text
        )


def join_with_device_memory(me: WorkerContext, url: str, memory: list[str]) -> None:
    late_device.load()
    mine = memory[me.index]
    steps.join(me, url, backend="UCX", device_memory={"late": mine} if mine else None)


# --- refusals ---------------------------------------------------------------------------------------


def send_back(x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_sync("worker0", torch.neg, args=(x,))


def miss_a_request_map(me: WorkerContext) -> None:
    """worker1 has no device maps of its own."""
    text = "it is on late:1. Request device mapping is not available for destination worker0"
    with pytest.raises(RuntimeError, match=re.escape(text)):
        rpc.rpc_sync("worker1", send_back, args=(torch.ones(2, device="late:0"),))


def test_a_request_without_a_map_names_device_and_worker(group: Any) -> None:
    run(group, miss_a_request_map)


def miss_an_answer_map(me: WorkerContext) -> None:
    text = "Response device mapping is not available for destination 'worker1'"
    with pytest.raises(RuntimeError, match=text):
        rpc.rpc_sync("worker0", on_device, args=(1.0,))


def test_an_answer_without_a_map_is_an_error_for_the_caller(group: Any) -> None:
    group.run(set_delay, 0.0)
    group[1].call(miss_an_answer_map)


def test_a_map_to_a_missing_device_fails_the_start_everywhere(tmp_path: Path) -> None:
    late_device.library()
    with Workers(2, seconds=60) as workers:
        wrong = {"device_maps": {"worker1": {"late:0": "late:7"}}}
        failures = workers.errors(join, f"file://{tmp_path}/store", "ZEROMQ", **wrong)
    texts = {failure.text for failure in failures}
    assert len(texts) == 1
    assert texts.pop().startswith("Node worker0 has target devices with invalid indices")


# --- interceptors ---------------------------------------------------------------------------------------


def get_late_answer(me: WorkerContext) -> None:
    late_device.set_delay(DELAY)
    x = torch.zeros(1000, device="late:0").add_(1)
    # The answer's copy takes far longer than fault injection holds the answer.
    future = rpc.rpc_async("worker1", double_slowly, args=(x,))
    late_device.set_delay(10 * DELAY)
    double = future.wait()
    late_device.set_delay(0)
    assert (double + 1).cpu().eq(3).all()


def test_a_held_message_keeps_its_streams(tmp_path: Path) -> None:
    """Fault injection passes requests and answers on later, on other threads."""
    late_device.library()
    rules = tmp_path / "rules.toml"
    kinds = ("delay", "reply_delay")
    rules.write_text(
        "".join(f'[[rule]]\nname = "{kind}"\nwhat = "{kind}"\nseconds = 0.02\n' for kind in kinds)
    )
    with Workers(2, seconds=60, env={"RPC_BACKENDS_FAULTS": str(rules)}) as workers:
        workers.run(join, f"file://{tmp_path}/store", "ZEROMQ")
        workers[0].call(get_late_answer)
        workers[0].call(send_from_another_stream)
        workers[1].call(set_delay, DELAY)
        workers[0].call(use_script)  # torch's future of its answer has no devices
        workers[1].call(set_delay, 0.0)
        workers.run(steps.leave)


# --- dynamic groups ---------------------------------------------------------------------------------


def join_dynamic(me: WorkerContext, url: str, maps: dict[str, Any]) -> None:
    late_device.load()
    steps.join_dynamic(me, url, backend="ZEROMQ", device_maps=maps)


def test_a_joiner_of_a_dynamic_group_brings_its_maps(tmp_path: Path) -> None:
    """The member that was there first learns them before the first call arrives."""
    late_device.library()
    url = f"file://{tmp_path}/store"
    with Workers(2, seconds=60) as workers:
        workers[1].call(join_dynamic, url, {})
        failure = workers[0].start(join_dynamic, url, {"worker1": {"late:0": "late:7"}}).error()
        assert failure.text.startswith("Node worker0 has target devices with invalid indices")
        workers[0].call(join_dynamic, url, {"worker1": MAPS["worker1"]})
        workers[0].call(there_and_back)
        workers.run(steps.leave)
