"""Members of `BackendType` that are passed between processes."""

from __future__ import annotations

import pytest

from support.environments import Environment
from support.samples import backend_package

PICKLE = """
    import base64, pickle, sys, torch.distributed.rpc as rpc
    member = rpc.BackendType.PIGEON
    member.value
    print(base64.b64encode(pickle.dumps(member, protocol=int(sys.argv[1]))).decode())
"""


@pytest.fixture(scope="module")
def environment(core_only: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with one backend. Tests must not change it."""
    folder = tmp_path_factory.mktemp("members")
    environment = Environment.like(core_only, folder / "environment")
    environment.install(backend_package(folder))
    return environment


@pytest.mark.parametrize(("imports", "protocol"), [("pass", "2"), ("import torch", "5")])
def test_unpickling_a_member_needs_no_loaded_plugin(
    environment: Environment, imports: str, protocol: str
) -> None:
    pickled = environment.run(PICKLE, protocol).stdout.strip()

    environment.run(
        """
        import base64, pickle, sys
        exec(sys.argv[1])
        assert "rpc_backend_pigeon" not in sys.modules
        member = pickle.loads(base64.b64decode(sys.argv[2]))
        import torch.distributed.rpc as rpc
        assert member is rpc.BackendType.PIGEON
        assert repr(member) == "BackendType.PIGEON"
        """,
        imports,
        pickled,
    )


def test_a_member_is_unpickled_with_autoload_off(environment: Environment) -> None:
    pickled = environment.run(PICKLE, "5").stdout.strip()

    environment.run(
        """
        import base64, pickle, sys
        import rpc_backends_core
        assert pickle.loads(base64.b64decode(sys.argv[1])) is rpc_backends_core.BackendType.PIGEON
        """,
        pickled,
        env={"RPC_BACKENDS_AUTOLOAD": "0"},
    )


def test_unpickling_a_member_without_its_plugin_names_it(
    environment: Environment, core_only: Environment
) -> None:
    pickled = environment.run(PICKLE, "5").stdout.strip()

    result = core_only.run(
        """
        import base64, pickle, sys, rpc_backends_core
        try:
            pickle.loads(base64.b64decode(sys.argv[1]))
        except rpc_backends_core.UnknownBackendError as error:
            print(error)
        """,
        pickled,
    )

    assert "PIGEON" in result.stdout


def test_a_member_may_be_an_argument_of_a_call(environment: Environment) -> None:
    results = environment.run_workers(
        """
        import os, sys, torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        if rank == 0:
            member = rpc.BackendType.PIGEON
            assert rpc.rpc_sync("worker1", str, args=(member,)) == str(member)
        rpc.shutdown()
        """
    )

    assert len(results) == 2
