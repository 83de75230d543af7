"""Packages that call torch's ``register_backend``, with or without an entry point for the backend.

Torch calls the entry points of ``torch.backends`` in the order of the distributions on ``sys.path``, so
a folder before or after site-packages decides which package is called first.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import Environment
from support.packages import write_package
from support.samples import (
    FAULTY_TENSORPIPE,
    GROUP,
    TENSORPIPE,
    TORCH_GROUP,
    old_style_package,
)


@pytest.fixture(scope="module", params=["theirs first", "ours first"])
def environment(
    request: pytest.FixtureRequest,
    core_only: Environment,
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """Make an environment in which torch calls an old-style package before or after the core.

    Tests must not change it.
    """
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


def test_its_backend_is_a_member_of_backend_type(environment: Environment) -> None:
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


def test_init_rpc_without_a_backend_works(environment: Environment) -> None:
    """Torch without this project fails here: `init_rpc` checks against an outdated enum."""
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


def test_a_later_registration_keeps_all_members(environment: Environment) -> None:
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


def test_a_member_taken_from_torchs_enum_is_accepted(environment: Environment) -> None:
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


# --- with an entry point for the backend -----------------------------------------------------------

REGISTERS = """
    from torch.distributed import rpc

    def construct(rpc_timeout, init_method, num_worker_threads=16, **kwargs):
        return rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=num_worker_threads, rpc_timeout=rpc_timeout, init_method=init_method
        )

    def init(store, name, rank, world_size, rpc_backend_options):
        agent = rpc.TensorPipeAgent(store, name, rank, world_size, rpc_backend_options, {}, [])
        rpc.api._init_rpc_states(agent)
        return agent

    rpc.backend_registry.register_backend("CARRIER", construct, init)

    def register():
        pass  # the import has registered the backend
"""


def carrier(installed: Environment, folder: Path, **groups: str) -> dict[str, str]:
    """Install the old-style package into a folder; return the variables that put it on ``sys.path``.

    :param groups: the value of its entry point in each group.
    """
    entry_points = {group: {"CARRIER": value} for group, value in groups.items()}
    wheel = write_package(
        folder,
        "torch-carrier",
        modules={"torch_carrier.py": REGISTERS},
        entry_points=entry_points,
    )
    installed.install_into(folder / "site", wheel)
    return {"PYTHONPATH": str(folder / "site")}


def test_a_package_may_register_and_have_an_entry_point(
    installed: Environment, tmp_path: Path
) -> None:
    """One worker imports the package as before, the other relies on the entry point."""
    installed.run_workers(
        """
        import os, torch, torch.distributed.rpc as rpc, rpc_backends_core
        rank = int(os.environ["RANK"])
        if rank == 0:
            import torch_carrier
        rpc.init_rpc(f"worker{rank}", backend="CARRIER", rank=rank, world_size=2)
        assert rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1)).sum() == 4
        rpc.shutdown()
        record = rpc_backends_core.record("CARRIER")
        assert (record.source, record.distribution) == ("plugin", "torch-carrier"), record
        """,
        env=carrier(installed, tmp_path, **{GROUP: "torch_carrier"}),
    )


def test_an_entry_point_makes_it_available_to_the_override(
    installed: Environment, tmp_path: Path
) -> None:
    variables = carrier(installed, tmp_path, **{GROUP: "torch_carrier"})
    installed.run_workers(
        """
        import sys, torch.distributed.rpc as rpc
        rpc.init_rpc("worker", rank=0, world_size=1)
        assert rpc.rpc_sync("worker", abs, args=(-1,)) == 1
        assert "torch_carrier" in sys.modules
        rpc.shutdown()
        """,
        world_size=1,
        env={**variables, "RPC_BACKENDS_OVERRIDE": "CARRIER"},
    )


def test_a_package_that_registers_with_torch_may_have_an_entry_point(
    installed: Environment, tmp_path: Path
) -> None:
    """The backend is registered at the end of `import torch`. This registration takes precedence."""
    groups = {GROUP: "torch_carrier", TORCH_GROUP: "torch_carrier:register"}
    result = installed.run(
        """
        import torch.distributed.rpc as rpc, rpc_backends_core
        import torch_carrier
        assert rpc.BackendType.CARRIER.value.init_backend_handler is torch_carrier.init
        print(*(record.state for record in rpc_backends_core.records() if record.name == "CARRIER"))
        """,
        env=carrier(installed, tmp_path, **groups),
    )

    assert result.stdout.split() == ["registered", "shadowed"]


def test_the_conformance_suite_runs_on_an_old_style_backend(
    installed: Environment, tmp_path: Path
) -> None:
    ended = installed.command(
        *("rpc-backends", "conformance", "CARRIER", "--chapter", "metrics"),
        env=carrier(installed, tmp_path, **{GROUP: "torch_carrier"}),
        timeout=300,
    )

    assert "CARRIER: nothing failed" in ended.stdout
