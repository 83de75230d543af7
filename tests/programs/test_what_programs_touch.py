"""What published programs touch beside the documented interface goes on working."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule

from support import steps
from support.workers import Me, Workers


def remote_forward(me: Me, to: str) -> list[int]:
    module = RemoteModule(f"{to}/cpu", torch.nn.Linear, (2, 3))
    return list(module.forward(torch.ones(1, 2)).shape)


def test_a_remote_module_runs(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)
        assert workers[0].call(remote_forward, "worker1") == [1, 3]
        workers.run(steps.leave)


def refusals(me: Me) -> tuple[str, str]:
    """Return what an absent worker and calls without RPC are told."""
    with pytest.raises(RuntimeError) as absent:
        rpc.get_worker_info("nobody")
    return type(absent.value).__name__, str(absent.value)


def test_an_absent_worker_is_a_runtime_error(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)
        assert {kind for kind, _ in workers.run(refusals)} == {"RuntimeError"}
        workers.run(steps.leave)


def ask_before_init(me: Me) -> str:
    assert not torch._C._distributed_rpc._is_current_rpc_agent_set()

    @rpc.api._require_initialized
    def ask() -> None:
        raise AssertionError("it is not initialised")

    with pytest.raises(RuntimeError) as refused:
        ask()
    with pytest.raises(RuntimeError):
        rpc.shutdown()
    return str(refused.value)


def test_what_requires_rpc_says_so_without_it() -> None:
    with Workers(1) as workers:
        assert "RPC has not been initialized" in workers[0].call(ask_before_init)


def leave_by_position(me: Me) -> None:
    rpc.shutdown(True, 0)
    assert not torch._C._distributed_rpc._is_current_rpc_agent_set()


def test_shutdown_takes_its_arguments_by_position(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url)
        workers.run(leave_by_position)


@pytest.mark.parametrize("lists", [{"_transports": ["uv"]}, {"_channels": ["basic"]}])
def test_options_with_transports_and_channels_and_no_backend_start_tensorpipe(
    url: str, lists: dict[str, Any]
) -> None:
    with Workers(2) as workers:
        workers.run(init_with_options, url, lists)
        assert all(workers.run(steps.is_running))
        workers.run(steps.leave)


def init_with_options(me: Me, url: str, lists: dict[str, Any]) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=url, **lists)
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, rpc_backend_options=options)


def both(me: Me, port: str) -> list[float]:
    """Start a process group and then RPC on one address, use both, and stop both."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=me.index, world_size=me.size)
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size)
    total = torch.ones(1)
    dist.all_reduce(total)
    answer = rpc.rpc_sync(f"worker{1 - me.index}", torch.add, args=(total, 1))
    rpc.shutdown()
    dist.barrier()
    dist.destroy_process_group()
    values: list[float] = answer.tolist()
    return values


def test_a_process_group_and_rpc_share_an_address() -> None:
    import socket

    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        with Workers(2) as workers:
            port = str(placeholder.getsockname()[1])
            assert workers.run(both, port) == [[3.0], [3.0]]


def wrap(me: Me) -> None:
    """Install a hook package's object by hand: it notes what passes."""
    from rpc_backends_core import hookimpl, hooks

    class Notes:
        seen: list[str] = me.memory.setdefault("seen", [])

        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(self, backend: str) -> Any:
            self.seen.append(f"options {backend}")
            return (yield)

        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(self, backend: str) -> Any:
            self.seen.append(f"init {backend}")
            return (yield)

        @hookimpl(wrapper=True)
        def rpc_backends_agent(self, backend: str | None) -> Any:
            agent = yield
            self.seen.append(f"agent {backend} {type(agent).__name__}")
            return agent

    hooks._packages().manager.register(Notes())


def seen(me: Me) -> list[str]:
    return list(me.memory["seen"])


def test_torchs_own_engine_passes_through_the_hooks(url: str) -> None:
    with Workers(2, env={"RPC_BACKENDS_DENY": "TENSORPIPE"}) as workers:
        workers.run(wrap)
        workers.run(steps.join, url)
        expected = ["options TENSORPIPE", "init TENSORPIPE", "agent TENSORPIPE TensorPipeAgent"]
        assert workers.run(seen) == [expected] * 2
        workers.run(steps.leave)
