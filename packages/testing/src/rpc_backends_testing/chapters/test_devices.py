"""Devices: tensors on accelerators go where the device maps say.

A backend that declares device maps takes the options ``device_maps`` (for each callee, a map from this
worker's devices to the callee's) and ``devices`` (this worker's devices that RPC uses), like torch's
TensorPipe options.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext, Workers
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.checks import doing, expect, fact, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import requirement
from rpc_backends_testing.subject import Subject

pytestmark = requirement("devices", capability=Capability.DEVICE_MAPS)

#: An index that no machine has.
NO_INDEX = 100


# --- what workers do -----------------------------------------------------------------------------


def join_with(me: WorkerContext, subject: Subject, url: str, given: dict[str, Any]) -> None:
    """Start RPC with the options ``given`` in worker 0, and none in the others."""
    worker_tasks.join(me, subject, url, **(given if me.index == 0 else {}))


def expect_options(me: WorkerContext, subject: Subject, given: dict[str, Any]) -> None:
    """Check that the backend has the options. Without them the others would wait for this worker."""
    member = rpc.BackendType[subject.name]
    construct: Any = rpc.backend_registry.construct_rpc_backend_options
    expect(
        doing(
            f"construct_rpc_backend_options({subject.name}, {', '.join(given)}=...)",
            lambda: construct(member, **{**subject.options, **given}),
        )
    ).returns()


def expect_refusal(
    me: WorkerContext, subject: Subject, url: str, given: dict[str, Any], text: str
) -> None:
    """Check that the start fails with ``text`` if worker 0 has the options ``given``."""
    expect(
        doing(f"init_rpc where worker0 has {given}", lambda: join_with(me, subject, url, given))
    ).raises(Exception, text)


def refused(groups: Groups, given: dict[str, Any], text: str) -> None:
    with groups.workers(2) as workers:
        workers[0].call(expect_options, groups.subject, dict.fromkeys(given))
        workers.run(expect_refusal, groups.subject, groups.place(), given, text)


def accelerators(me: WorkerContext) -> tuple[str, int]:
    """Return the type and number of this machine's accelerators."""
    # Torch 2.6 names an accelerator that its build supports even if the machine has none.
    there = torch.accelerator.is_available()
    kind = torch.accelerator.current_accelerator() if there else None
    return ("", 0) if kind is None else (kind.type, torch.accelerator.device_count())


def need_accelerators(workers: Workers, count: int) -> str:
    """Return the type of the accelerators, or skip the test if there are fewer than ``count``."""
    # A worker counts them, because the process that workers are forked from must not use accelerators.
    kind, present = workers[0].call(accelerators)
    if present < count:
        pytest.skip(f"it needs {count} accelerator(s), and this machine has {present}")
    return str(kind)


def device_and_double(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Return the device that ``x`` is on here, and its double."""
    return str(x.device), x + x


def there_and_back(me: WorkerContext, to: str, mine: str, theirs: str) -> None:
    """Send a tensor to another device, and get its double back on the tensor's own device."""
    x = torch.arange(1000, dtype=torch.float32, device=mine)
    device, double = expect(sync(to, device_and_double, args=(x,))).returns()
    expect(fact("the tensor's device on the callee", device)).gives(theirs)
    expect(fact("the device of the result", str(double.device))).gives(mine)
    expect(fact("the result", double.cpu())).gives(2 * torch.arange(1000, dtype=torch.float32))


def send_unfinished(me: WorkerContext, mine: str) -> None:
    """Send a tensor that the device is still computing, and use the result at once."""
    x = torch.zeros(1 << 22, device=mine)
    for _ in range(500):
        x.add_(1)
    _, double = expect(sync("worker1", device_and_double, args=(x,))).returns()
    expect(fact("the result, used at once", (double + 1).cpu())).gives(
        torch.full((1 << 22,), 1001.0)
    )


# --- maps that need no accelerator ---------------------------------------------------------------


def test_unknown_worker(rpc_groups: Groups) -> None:
    """If a device map names an unknown worker, all workers get an error that names it.

    The workers must exchange their maps before any `init_rpc` returns.
    """
    refused(rpc_groups, {"device_maps": {"nobody": {"cpu": "cpu"}}}, "nobody")


def test_no_such_source(rpc_groups: Groups) -> None:
    """If a device map has a source that its worker lacks, all workers get an error with its name."""
    maps = {"worker1": {f"cuda:{NO_INDEX}": "cpu"}}
    refused(rpc_groups, {"device_maps": maps}, "worker0")


def test_no_such_target(rpc_groups: Groups) -> None:
    """If a device map has a target that the callee lacks, all workers get an error."""
    maps = {"worker1": {"cpu": f"cuda:{NO_INDEX}"}}
    refused(rpc_groups, {"device_maps": maps}, "worker0")


def use_map(me: WorkerContext) -> None:
    there_and_back(me, "worker1", "cpu", "cpu")
    info = rpc.get_worker_info("worker1")
    device_map = rpc.api._get_current_rpc_agent()._get_device_map(info)
    expect(fact("agent._get_device_map(worker1)", device_map)).gives(
        {torch.device("cpu"): torch.device("cpu")}
    )


def test_cpu_to_cpu(rpc_groups: Groups) -> None:
    """A device map from CPU to CPU is accepted, the agent returns it, and it changes nothing."""
    with rpc_groups.workers(2) as workers:
        given = {"device_maps": {"worker1": {"cpu": "cpu"}}}
        workers[0].call(expect_options, rpc_groups.subject, {"device_maps": None})
        workers.run(join_with, rpc_groups.subject, rpc_groups.place(), given)
        workers[0].call(use_map)
        workers.run(worker_tasks.leave)


@requirement("devices", capability=Capability.DEVICES)
def test_no_such_device(rpc_groups: Groups) -> None:
    """If `devices` has a device that its worker lacks, all workers get an error with its name."""
    refused(rpc_groups, {"devices": [f"cuda:{NO_INDEX}"]}, "worker0")


# --- accelerators --------------------------------------------------------------------------------


def run_with_map(groups: Groups, count: int, target: int, step: Any) -> None:
    """Run a step in worker 0 under a map from its first accelerator to one of worker 1."""
    with groups.workers(2, 60) as workers:
        kind = need_accelerators(workers, count)
        mine, theirs = f"{kind}:0", f"{kind}:{target}"
        given = {"device_maps": {"worker1": {mine: theirs}}}
        workers[0].call(expect_options, groups.subject, {"device_maps": None})
        workers.run(join_with, groups.subject, groups.place(), given)
        workers[0].call(step, mine=mine, **({"theirs": theirs} if step is _to_worker1 else {}))
        workers.run(worker_tasks.leave)


def _to_worker1(me: WorkerContext, mine: str, theirs: str) -> None:
    there_and_back(me, "worker1", mine, theirs)


def test_there_and_back(rpc_groups: Groups) -> None:
    """A tensor goes to the mapped device, and the result comes back to the tensor's own device."""
    run_with_map(rpc_groups, 1, 0, _to_worker1)


def test_another_device(rpc_groups: Groups) -> None:
    """A device map may name a device with another index."""
    run_with_map(rpc_groups, 2, 1, _to_worker1)


def test_streams_are_synchronised(rpc_groups: Groups) -> None:
    """A tensor or result that is still being computed arrives complete.

    The agent's copies must wait for the caller's stream, and the receiver's stream for the copies.
    """
    run_with_map(rpc_groups, 1, 0, send_unfinished)


def send_unmapped(me: WorkerContext, mine: str) -> None:
    x = torch.ones(3, device=mine)
    expect(sync("worker1", device_and_double, args=(x,))).raises(Exception, "(?i)device|cuda|cpu")
    expect(sync("worker1", device_and_double, args=(x.cpu(),))).gives(("cpu", x.cpu() * 2))


def test_not_mapped(rpc_groups: Groups) -> None:
    """Without a device map, a tensor on an accelerator is an error, and later calls work."""
    with rpc_groups.workers(2, 60) as workers:
        kind = need_accelerators(workers, 1)
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers[0].call(send_unmapped, mine=f"{kind}:0")
        workers.run(worker_tasks.leave)
