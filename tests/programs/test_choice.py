"""Which backend a program gets, in real processes: by name, by options, by the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.workers import Me, Workers


def engine(me: Me) -> str:
    """Return the module that the running agent's class is from."""
    return type(rpc.api._get_current_rpc_agent()).__module__


def init(me: Me, url: str, *, options: bool = False, **arguments: Any) -> None:
    """Call init_rpc as a program does: with options of TENSORPIPE, or over the environment's address."""
    if options:
        arguments["rpc_backend_options"] = rpc.TensorPipeRpcBackendOptions(init_method=url)
    else:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=url)
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, **arguments)


@pytest.fixture
def port() -> Any:
    """Keep a port free for a TCP store."""
    import socket

    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        yield str(placeholder.getsockname()[1])


@pytest.mark.parametrize("name", ["FAULTY_TENSORPIPE", "faulty_tensorpipe", "Faulty_TensorPipe"])
def test_a_backend_is_chosen_by_its_name_in_any_case(port: str, name: str) -> None:
    with Workers(2) as workers:
        workers.run(init, port, backend=name)
        assert workers.run(engine) == ["rpc_backend_faulty_tensorpipe.handlers"] * 2
        workers.run(steps.leave)


def test_a_program_that_names_nothing_gets_the_installed_tensorpipe(port: str) -> None:
    with Workers(2) as workers:
        workers.run(init, port)
        assert workers.run(engine) == ["rpc_backend_tensorpipe.static_group"] * 2
        workers.run(steps.leave)


def test_the_environment_chooses_for_a_program_that_names_nothing(port: str) -> None:
    with Workers(2, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIPE"}) as workers:
        workers.run(init, port)
        assert workers.run(engine) == ["rpc_backend_faulty_tensorpipe.handlers"] * 2
        workers.run(steps.leave)


def test_options_choose_before_the_environment_does(url: str) -> None:
    with Workers(2, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIPE"}) as workers:
        workers.run(init, url, options=True)
        assert workers.run(engine) == ["rpc_backend_tensorpipe.static_group"] * 2
        workers.run(steps.leave)


def test_an_unknown_default_is_named_with_its_variable_and_the_nearest_name(port: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": "TENSOPIPE"}) as workers:
        (failure,) = workers.errors(init, port)
        assert "RPC_BACKENDS_DEFAULT='TENSOPIPE'" in failure.text
        assert "Did you mean 'TENSORPIPE'?" in failure.text


def test_torchs_own_engine_serves_where_the_installed_one_is_denied(port: str) -> None:
    with Workers(2, env={"RPC_BACKENDS_DENY": "TENSORPIPE"}) as workers:
        workers.run(init, port)
        assert workers.run(engine) == ["torch._C._distributed_rpc"] * 2
        workers.run(steps.leave)


# --- after a registration ------------------------------------------------------------------------


class Options(rpc.RpcBackendOptions):
    """The options of a backend that a program registers: no relation of TENSORPIPE's."""

    def __init__(self, flavour: str, rpc_timeout: float, init_method: str) -> None:
        super().__init__()
        self.flavour = flavour
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method


CONSTRUCTED: list[str] = []


def construct(rpc_timeout: float, init_method: str, flavour: str) -> Options:
    """Construct options, of which one is required."""
    CONSTRUCTED.append(flavour)
    return Options(flavour, rpc_timeout, init_method)


def init_as_torch_documents(
    store: Any, name: str, rank: int, world_size: int, rpc_backend_options: Options
) -> Any:
    """Start torch's agent the way that backends written for torch's registry do."""
    group = rpc.backend_registry._init_process_group(store, rank, world_size)
    assert group.size() == world_size
    reverse = rpc.backend_registry._create_reverse_mapping(name, [name], {name: {}})
    devices = rpc.backend_registry._create_device_list([], {}, reverse)
    agent = rpc.TensorPipeAgent(
        store,
        name,
        rank,
        world_size,
        rpc.TensorPipeRpcBackendOptions(init_method=rpc_backend_options.init_method),
        reverse,
        devices,
    )
    rpc.api._init_rpc_states(agent)
    rpc.api._all_gather(None, timeout=rpc_backend_options.rpc_timeout)
    group.barrier().wait()
    return agent


def register(me: Me) -> None:
    """Register as third-party packages do, the assignment that torch's registry needs included."""
    from torch.distributed.rpc import backend_registry

    before = rpc.BackendType
    backend_registry.register_backend("MINT", construct, init_as_torch_documents)
    torch.distributed.rpc.BackendType = backend_registry.BackendType
    assert rpc.BackendType is before


def test_plain_init_rpc_works_after_a_registration(port: str) -> None:
    """Stock torch: "must be of type <enum 'BackendType'>" (pytorch issue 104620)."""
    with Workers(2) as workers:
        workers.run(register)
        workers.run(init, port)
        assert workers.run(engine) == ["rpc_backend_tensorpipe.static_group"] * 2
        workers.run(steps.leave)


def hold_a_member(me: Me) -> None:
    me.memory["member"] = rpc.BackendType.TENSORPIPE


def init_with_the_held_member(me: Me, port: str) -> None:
    init(me, port, backend=me.memory["member"])


def test_a_member_taken_before_a_registration_is_as_good_as_ever(port: str) -> None:
    with Workers(2) as workers:
        workers.run(hold_a_member)
        workers.run(register)
        workers.run(init_with_the_held_member, port)
        workers.run(steps.leave)


def constructed(me: Me) -> list[str]:
    return list(CONSTRUCTED)


def test_options_find_their_backend_and_nothing_of_another_is_constructed(url: str) -> None:
    """Stock torch constructs every backend's options, and fails where one has a required option."""
    with Workers(2) as workers:
        workers.run(register)
        workers.run(init, url, options=True)
        assert workers.run(engine) == ["rpc_backend_tensorpipe.static_group"] * 2
        assert workers.run(constructed) == [[], []]
        workers.run(steps.leave)


def test_a_backend_registered_the_old_way_carries_calls(url: str) -> None:
    with Workers(2) as workers:
        workers.run(register)
        workers.run(steps.join, url, backend="MINT", flavour="strong")
        assert workers.run(engine) == ["torch._C._distributed_rpc"] * 2
        everybody = {"worker0": "worker0", "worker1": "worker1"}
        assert workers.run(steps.call_all) == [everybody] * 2
        workers.run(steps.leave)


def test_importing_torchs_testing_package_changes_nothing(port: str) -> None:
    with Workers(2) as workers:
        workers.run(import_testing)
        workers.run(init, port, backend="FAULTY_TENSORPIPE")
        assert workers.run(engine) == ["rpc_backend_faulty_tensorpipe.handlers"] * 2
        workers.run(steps.leave)


def import_testing(me: Me) -> None:
    import torch.distributed.rpc._testing  # noqa: F401
