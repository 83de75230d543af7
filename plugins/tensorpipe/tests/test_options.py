"""Every option of TENSORPIPE reaches the agent; none is lost or ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_testing import resource_leaks
from support import steps
from support.workers import WorkerContext, Workers

KNOWN = (
    "rpc_timeout",
    "init_method",
    "num_worker_threads",
    "device_maps",
    "devices",
    "_transports",
    "_channels",
)


def agent_options(me: WorkerContext) -> dict[str, Any]:
    agent = rpc.api._get_current_rpc_agent()
    options = agent._get_backend_options()
    return {
        "threads": agent.get_metrics()["agent.thread_pool_size"],
        "num_worker_threads": options.num_worker_threads,
        "rpc_timeout": rpc.get_rpc_timeout(),
        "init_method": options.init_method,
        "device_maps": options.device_maps,
        "map of worker1": agent._get_device_map(rpc.get_worker_info("worker1")),
    }


def test_torchs_options_refuse_an_unknown_name_with_the_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"no option 'num_threads'\. Did you mean 'num_worker_threads'"
    ):
        rpc.TensorPipeRpcBackendOptions(num_threads=3)


def test_threads_timeout_and_init_method_arrive(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url, num_worker_threads=3, rpc_timeout=7)

        for seen in workers.run(agent_options):
            assert (seen["threads"], seen["num_worker_threads"]) == ("3", 3)
            assert seen["rpc_timeout"] == 7.0
            assert seen["init_method"] == url

        workers.run(steps.leave)


def test_transports_arrive(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url, _transports=None, only={0: {"_transports": ["uv"]}})

        # Shared memory is a transport, so a worker without it opens no shared memory.
        assert [
            any("tensorpipe_shm" in file for file in process.files) for process in opened(workers)
        ] == [
            False,
            True,
        ]
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2

        workers.run(steps.leave)


def opened(workers: Workers) -> list[resource_leaks.Open]:
    return workers.run(resource_leaks.opened)


@pytest.mark.parametrize("option", ["_transports", "_channels"])
def test_unknown_transports_and_channels_are_refused(url: str, option: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join, url, **{option: ["pigeon"]})

        assert "pigeon" in failure.text


def test_device_maps_arrive(url: str) -> None:
    """Stock torch's handler drops ``device_maps`` and ``devices``."""
    cpu = torch.device("cpu")
    with Workers(2) as workers:
        workers.run(steps.join, url, only={0: {"device_maps": {"worker1": {"cpu": "cpu"}}}})

        seen = workers.run(agent_options)
        assert [maps["map of worker1"] for maps in seen] == [{cpu: cpu}, {}]
        assert workers[0].call(steps.call, "worker1", torch.add, torch.ones(1), 1).item() == 2

        workers.run(steps.leave)


def test_devices_arrive(url: str) -> None:
    # No machine has this device, so the error shows that the option arrived.
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join, url, devices=["cuda:100"])

        assert failure.kinds[0] == "ValueError"
        assert "Node worker0 has devices with invalid indices: cuda:100" in failure.text


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join, "file:///nowhere", num_threads=3)

        assert failure.kinds[0] == "TypeError"
        assert "'num_threads'" in failure.text
        assert all(name in failure.text for name in KNOWN)


def test_a_negative_timeout_is_an_error(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join, url, rpc_timeout=-1)

        assert "must be non-negative" in failure.text


def test_options_of_torchs_class_are_used_unchanged(url: str) -> None:
    with Workers(2) as workers:
        workers.run(join_with_torchs_options, url)

        assert [seen["threads"] for seen in workers.run(agent_options)] == ["2", "2"]

        workers.run(steps.leave)


def join_with_torchs_options(me: WorkerContext, url: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=url, num_worker_threads=2, _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, rpc_backend_options=options)
