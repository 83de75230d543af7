"""Backends that a program or package registers in torch's own registry work unchanged."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C._distributed_rpc import _TensorPipeRpcBackendOptionsBase
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

registry: Any = rpc.backend_registry


class Options(_TensorPipeRpcBackendOptionsBase):  # type: ignore[misc]  # torch gives it no types
    """Derived from the same base as torch's ``TensorPipeRpcBackendOptions``, not from that class."""

    def __init__(self, rpc_timeout: float, init_method: str, num_worker_threads: int) -> None:
        super().__init__(num_worker_threads, None, None, rpc_timeout, init_method, {}, [])


def construct(rpc_timeout: float, init_method: str, num_worker_threads: int, **_: Any) -> Options:
    """Construct options; ``num_worker_threads`` is required."""
    return Options(rpc_timeout, init_method, num_worker_threads)


def start_agent(store: Any, name: str, rank: int, world_size: int, rpc_backend_options: Any) -> Any:
    """Start torch's agent as torch's handlers do, with torch's private helpers."""
    group = registry._init_process_group(store, rank, world_size)
    gathered: list[Any] = [None] * group.size()
    dist.all_gather_object(gathered, (name, rpc_backend_options.device_maps), group)
    reverse = registry._create_reverse_mapping(
        name, [worker_name for worker_name, _ in gathered], dict(gathered)
    )
    devices = registry._create_device_list(
        rpc_backend_options.devices, rpc_backend_options.device_maps, reverse
    )
    agent = rpc.TensorPipeAgent(
        store, name, rank, world_size, rpc_backend_options, reverse, devices
    )
    rpc.api._init_rpc_states(agent)
    rpc.api._all_gather(None, timeout=rpc_backend_options.rpc_timeout)
    group.barrier().wait()
    return agent


def register(me: WorkerContext, *names: str) -> list[str]:
    """Register backends and rebind torch's enum, as existing packages do."""
    for name in names:
        registry.register_backend(name, construct, start_agent)
        rpc.__dict__["BackendType"] = registry.BackendType
    return [member.name for member in rpc.BackendType]


def test_calls_rrefs_and_autograd_work(url: str) -> None:
    with Workers(2) as workers:
        workers.run(register, "OLD")

        workers.run(steps.join, url, backend="OLD", num_worker_threads=2)

        assert workers.run(agent_type) == ["TensorPipeAgent"] * 2
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
        assert workers.run(steps.use_rref, "worker1") == [[2.0] * 3] * 2
        assert workers.run(steps.differentiate, "worker1") == [[3.0, 3.0]] * 2
        workers.run(steps.leave)
        assert workers.run(steps.is_running) == [False, False]


def agent_type(me: WorkerContext) -> str:
    return type(rpc.api._get_current_rpc_agent()).__name__


def test_groups_of_it_and_of_tensorpipe_alternate(url: str) -> None:
    with Workers(2) as workers:
        workers.run(register, "OLD")
        for options in ({"backend": "OLD", "num_worker_threads": 2}, {}) * 2:
            workers.run(steps.join, url, **options)
            assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
            workers.run(steps.leave)


def test_backends_with_the_same_handlers_are_two_members() -> None:
    """In stock torch's enum, one of them becomes an alias of the other."""
    with Workers(1) as workers:
        names = workers[0].call(register, "ONE", "TWO")

        assert {"ONE", "TWO"} < set(names)
        assert workers[0].call(are_two) == (True, True)


def are_two(me: WorkerContext) -> tuple[bool, bool]:
    first, second = rpc.BackendType.ONE, rpc.BackendType.TWO
    return first is not second and first != second, first.value == second.value


def test_options_that_a_backend_made_select_it(url: str) -> None:
    with Workers(1) as workers:
        workers.run(register, "OLD")

        workers.run(start_by_options, url)

        assert workers.run(agent_type) == ["TensorPipeAgent"]
        workers.run(steps.leave)


def start_by_options(me: WorkerContext, url: str) -> None:
    options = registry.construct_rpc_backend_options(
        rpc.BackendType.OLD, init_method=url, num_worker_threads=2
    )
    rpc.init_rpc(me.name, rank=0, world_size=1, rpc_backend_options=options)


class Derived(rpc.TensorPipeRpcBackendOptions):
    """Derived from torch's class, as the options of torch_npu are."""


def test_options_derived_from_torchs_select_their_own_backend(url: str) -> None:
    """Options that only the program has made do not select TENSORPIPE through their base class."""
    with Workers(1) as workers:
        workers.run(register_derived)

        workers.run(start_by_derived_options, url)

        assert workers.run(agent_type) == ["TensorPipeAgent"]  # torch's own, not a plugin's
        assert workers.run(steps.call_all) == [{"worker0": "worker0"}]
        workers.run(steps.leave)


def register_derived(me: WorkerContext) -> None:
    def construct_derived(rpc_timeout: float, init_method: str, **options: Any) -> Derived:
        return Derived(rpc_timeout=rpc_timeout, init_method=init_method, **options)

    registry.register_backend("OLD", construct_derived, start_agent)


def start_by_derived_options(me: WorkerContext, url: str) -> None:
    options = Derived(init_method=url, num_worker_threads=2)
    rpc.init_rpc(me.name, rank=0, world_size=1, rpc_backend_options=options)


def test_missing_required_options_raise_the_handlers_error(url: str) -> None:
    with Workers(1) as workers:
        workers.run(register, "OLD")

        (failure,) = workers.errors(start_without_options)

        assert failure.kinds[0] == "TypeError"
        assert "num_worker_threads" in failure.text


def start_without_options(me: WorkerContext) -> None:
    rpc.init_rpc(me.name, backend=rpc.BackendType.OLD, rank=0, world_size=1)


def test_a_taken_name_raises_torchs_error() -> None:
    with Workers(1) as workers:
        for name in ("TENSORPIPE", "FAULTY_TENSORPIPE"):
            (failure,) = workers.errors(register, name)
            assert failure.kinds[0] == "RuntimeError"
            assert failure.text == f"RPC backend {name}: already registered"


def test_another_backend_starts_after_a_failed_start(url: str) -> None:
    with Workers(1) as workers:
        workers.run(register_broken)

        (failure,) = workers.errors(steps.join, url, backend="BROKEN", num_worker_threads=2)

        assert failure.text == "broken after the agent was started"
        assert workers.run(steps.is_running) == [False]
        workers.run(steps.join, url)
        assert workers.run(steps.call_all) == [{"worker0": "worker0"}]
        workers.run(steps.leave)


def register_broken(me: WorkerContext) -> None:
    registry.register_backend("BROKEN", construct, start_agent_and_fail)


def start_agent_and_fail(**arguments: Any) -> Any:
    start_agent(**arguments)
    raise OSError("broken after the agent was started")
