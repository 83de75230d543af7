"""Parts of torch's RPC that published programs use and torch does not document still work."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc

from support import steps
from support.steps import Meeting
from support.workers import WorkerContext, Workers


def test_require_initialized_raises_without_rpc(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(guarded)
        assert failure.kinds[0] == "RuntimeError"
        assert failure.text.startswith("RPC has not been initialized.")

        workers.run(steps.join, url)
        assert workers.run(guarded) == ["through"]
        workers.run(steps.leave)

        workers.errors(guarded)


def guarded(me: WorkerContext) -> str:
    return str(rpc.api._require_initialized(lambda: "through")())


def test_is_current_rpc_agent_set_tells_whether_rpc_runs(url: str) -> None:
    with Workers(1) as workers:
        assert workers.run(agent_is_set) == [False]
        workers.run(steps.join, url)
        assert workers.run(agent_is_set) == [True]
        workers.run(steps.leave)
        assert workers.run(agent_is_set) == [False]


def agent_is_set(me: WorkerContext) -> bool:
    from torch._C._distributed_rpc import _is_current_rpc_agent_set

    return bool(_is_current_rpc_agent_set())


@pytest.mark.parametrize("world_size", [0, None], ids=["static", "dynamic"])
def test_all_gather_spans_all_members(where: Meeting, world_size: int | None) -> None:
    """In a dynamic group of stock torch, it returns only the caller's own value."""
    with Workers(3, env=where.env) as workers:
        workers.run(steps.join, where.url, world_size=world_size)

        for value in ("first", "second"):
            everybody = dict.fromkeys(("worker0", "worker1", "worker2"), value)
            assert workers.run(steps.gather, value) == [everybody] * 3

        workers.run(steps.leave)


def test_a_barrier_of_some_workers_works(url: str) -> None:
    with Workers(3) as workers:
        workers.run(steps.join, url)

        workers.run(barrier, on=[0, 2])

        workers.run(steps.leave)


def barrier(me: WorkerContext) -> None:
    rpc.api._barrier({"worker0", "worker2"})


@pytest.mark.parametrize("world_size", [0, None], ids=["static", "dynamic"])
def test_remote_modules_work(url: str, world_size: int | None) -> None:
    """A remote module asks the agent for its device map to the worker that has the module."""
    with Workers(2) as workers:
        workers.run(steps.join, url, world_size=world_size)

        assert workers[0].call(use_remote_module) == [[3.0]]

        workers.run(steps.leave)


def use_remote_module(me: WorkerContext) -> Any:
    from torch.distributed.nn import RemoteModule

    module = RemoteModule("worker1/cpu", nn.Linear, args=(2, 1))
    for parameter, value in zip(module.remote_parameters(), (1.0, 1.0), strict=True):
        rpc.rpc_sync("worker1", fill, args=(parameter, value))
    result = module.forward(torch.ones(1, 2))
    return result.tolist()


def fill(parameter: Any, value: float) -> None:
    with torch.no_grad():
        parameter.local_value().fill_(value)


def test_rpc_and_a_process_group_share_master_port(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with steps.meeting("tcp", tmp_path_factory.mktemp("unused")) as place:
        port = place.url.rpartition(":")[2]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        with Workers(2, env=env) as workers:
            workers.run(begin_process_group)
            for _ in range(2):
                workers.run(steps.join, "env://")
                assert (
                    workers.run(steps.call_all)
                    == [{"worker0": "worker0", "worker1": "worker1"}] * 2
                )
                assert workers.run(all_reduce) == [2.0, 2.0]
                workers.run(steps.leave)
            assert workers.run(all_reduce) == [2.0, 2.0]
            workers.run(end_process_group)


def begin_process_group(me: WorkerContext) -> None:
    os.environ["RANK"] = str(me.index)
    dist.init_process_group("gloo")


def all_reduce(me: WorkerContext) -> float:
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return float(ones)


def end_process_group(me: WorkerContext) -> None:
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [2, None], ids=["static", "dynamic"])
@pytest.mark.parametrize("passes_rank", [True, False], ids=["rank said", "rank not said"])
def test_rank_and_address_come_from_the_environment(
    tmp_path_factory: pytest.TempPathFactory, passes_rank: bool, world_size: int | None
) -> None:
    """Under torchrun, a program need only give a name."""
    with (
        steps.meeting("agent", tmp_path_factory.mktemp("unused")) as place,
        Workers(2, env={"WORLD_SIZE": "2", **place.env}) as workers,
    ):
        workers.run(start_as_torchrun_does, passes_rank, world_size)

        assert workers.run(steps.members) == [{"worker0": 0, "worker1": 1}] * 2
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2

        workers.run(steps.leave)


def test_a_store_at_another_address_than_the_launchers_outlives_its_worker(tmp_path: Path) -> None:
    """Since torch 2.14, rank 0 hosts a store that is not at torchrun's address."""
    if not hasattr(sys.modules["torch.distributed.rendezvous"], "_agent_store_serves"):
        pytest.skip("before torch 2.14, no worker hosts a store under torchrun")
    with (
        steps.meeting("agent", tmp_path) as launcher,
        steps.meeting("tcp", tmp_path) as place,
        Workers(3, env=launcher.env) as workers,
    ):
        workers.run(steps.join_dynamic, place.url, on=[0])
        workers.run(steps.join_dynamic, place.url, on=[1])
        workers.run(steps.leave, graceful=False, on=[0])
        workers.run(collect_garbage, on=[0])
        workers.run(steps.join_dynamic, place.url, on=[2])

        assert workers.run(steps.members, on=[2]) == [{"worker1": 1, "worker2": 2}]

        workers.run(steps.leave, on=[1, 2])


def collect_garbage(me: WorkerContext) -> None:
    gc.collect()


def start_as_torchrun_does(me: WorkerContext, passes_rank: bool, world_size: int | None) -> None:
    os.environ["RANK"] = str(me.index)
    rpc.init_rpc(me.name, world_size=world_size, **{"rank": me.index} if passes_rank else {})


def test_debug_info_has_the_agents_figures(url: str) -> None:
    with Workers(1) as workers:
        workers.run(steps.join, url)

        (info,) = workers.run(debug_info)
        assert "agent.thread_pool_size" in info

        workers.run(steps.leave)


def debug_info(me: WorkerContext) -> dict[str, str]:
    return dict(rpc._get_debug_info())


def test_a_start_uses_the_programs_own_store() -> None:
    """Torch's own tests and some programs call ``_init_rpc_backend`` with a store of their own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with Workers(2) as workers:
        for _ in range(2):
            workers.run(start_on_own_store, store.port)
            assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
            workers.run(steps.leave)


def start_on_own_store(me: WorkerContext, port: int) -> None:
    me.memory["store"] = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    # What init_rpc does before it calls _init_rpc_backend.
    dist.autograd._init(me.index)
    rpc._init_rpc_backend(
        backend=rpc.BackendType.TENSORPIPE,
        store=me.memory["store"],
        name=me.name,
        rank=me.index,
        world_size=me.size,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(),
    )
