"""Packages that register the old way, from a ``torch.backends`` entry point of their own.

torch calls the entry points in the order in which the distributions come on ``sys.path``, so a
folder in front of site-packages or behind it decides who is first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import Environment
from support.samples import FAULTY_TENSORPIPE, TENSORPIPE, old_style_package


@pytest.fixture(scope="module", params=["theirs first", "ours first"])
def environment(
    request: pytest.FixtureRequest,
    core_only: Environment,
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """Install the core, FAULTY_TENSORPIPE and the other package, in either order. Not to be changed."""
    place = tmp_path_factory.mktemp("old-style")
    environment = Environment.like(core_only, place / "environment")
    environment.install(wheels[TENSORPIPE], wheels[FAULTY_TENSORPIPE])
    folder = place / "theirs"
    environment.install_into(folder, old_style_package(place))
    first = request.param == "theirs first"
    if first:
        environment.add_first_path(folder)
    else:
        environment.add_path(folder)

    order = environment.run("import torch, torch_carrier; print(torch_carrier.ours_came_first)")
    assert order.stdout.strip() == str(not first), order
    return environment


def test_its_backend_is_a_member_of_the_one_enum(environment: Environment) -> None:
    result = environment.run(
        """
        import json, torch, torch_carrier, rpc_backends_core
        rpc = torch.distributed.rpc
        assert rpc.BackendType is rpc.backend_registry.BackendType
        assert rpc.BackendType is rpc_backends_core.BackendType
        assert rpc.BackendType.CARRIER.value.init_backend_handler is torch_carrier.init
        record = rpc_backends_core.record("CARRIER")
        print(json.dumps([record.source, record.state,
                          sorted(member.name for member in rpc.BackendType)]))
        """
    )

    source, state, names = result.json
    assert (source, state) == ("process", "registered")
    assert {"CARRIER", "FAULTY_TENSORPIPE", "TENSORPIPE"} <= set(names)


def test_plain_init_rpc_goes_on_working(environment: Environment) -> None:
    """Stock torch fails here: `init_rpc` checks against an enum the registry has left behind."""
    environment.run_workers(
        """
        import os, torch, torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        assert rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1)).sum() == 4
        rpc.shutdown()
        """
    )


def test_its_backend_carries_calls(environment: Environment) -> None:
    environment.run_workers(
        """
        import os, torch, torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        for backend in rpc.BackendType.CARRIER, "carrier":
            rpc.init_rpc(f"worker{rank}", backend=backend, rank=rank, world_size=2)
            assert rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1)).sum() == 4
            rpc.shutdown()
        """
    )


def test_registering_the_name_again_is_torchs_error(environment: Environment) -> None:
    result = environment.run(
        """
        import torch.distributed.rpc as rpc, torch_carrier as theirs
        try:
            rpc.backend_registry.register_backend("CARRIER", theirs.construct, theirs.init)
        except RuntimeError as error:
            print(error)
        """
    )

    assert result.stdout.startswith("RPC backend CARRIER: already registered")


def test_a_later_registration_moves_no_member(environment: Environment) -> None:
    environment.run(
        """
        import torch.distributed.rpc as rpc, torch_carrier
        names = "TENSORPIPE", "FAULTY_TENSORPIPE", "CARRIER"
        before = [rpc.BackendType[name] for name in names]
        rpc.backend_registry.register_backend("LATE", torch_carrier.construct, torch_carrier.init)
        rpc.BackendType = rpc.backend_registry.BackendType
        assert [rpc.BackendType[name] for name in names] == before
        assert all(rpc.BackendType[name] is member for name, member in zip(names, before))
        late = rpc.BackendType.LATE
        assert late is not rpc.BackendType.CARRIER, "equal handlers made an alias"
        assert late != rpc.BackendType.CARRIER
        assert late.value == rpc.BackendType.CARRIER.value
        """
    )


def test_a_member_of_torchs_own_enum_taken_before_is_understood(environment: Environment) -> None:
    environment.run_workers(
        """
        import os, torch, torch.distributed.rpc as rpc
        taken = rpc.BackendType.TENSORPIPE
        assert type(taken) is rpc.BackendType, "torch's own was not taken"
        import rpc_backends_core
        rpc_backends_core.install()
        assert type(taken) is not rpc.BackendType
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", backend=taken, rank=rank, world_size=2)
        assert rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1)).sum() == 4
        rpc.shutdown()
        """,
        env={"RPC_BACKENDS_AUTOLOAD": "0"},
    )
