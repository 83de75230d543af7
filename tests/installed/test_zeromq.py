"""ZEROMQ as a user installs it: wheels of the agents and the plugin, built with this torch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import quickstart
from support.environments import Environment
from support.samples import CORE, NEED_AGENTS

pytestmark = pytest.mark.slow

DEFAULT = """
    import os
    from torch.distributed import rpc
    import torch

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    print(rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), rank)).tolist())
    print(type(rpc.api._get_current_rpc_agent()).__module__)
    rpc.shutdown()
"""

BY_NAME = DEFAULT.replace(
    "rank=rank, world_size=2", "backend=rpc.BackendType.TENSORPIPE, rank=rank, world_size=2"
)

BY_OPTIONS = DEFAULT.replace(
    "rank=rank, world_size=2",
    """rank=rank, world_size=2, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=8, rpc_timeout=33, _transports=["uv"], _channels=["basic"])""",
).replace(
    "rpc.shutdown()",
    """print(rpc.get_rpc_timeout())
    print(rpc.api._get_current_rpc_agent().get_metrics()["agent.thread_pool_size"])
    rpc.shutdown()""",
)

#: Python's ssl and the engine take turns in both processes.
BESIDE_SSL = """
    import os, ssl
    from torch.distributed import rpc
    import torch

    def shake_hands():
        server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_context.load_cert_chain(os.environ["CERTIFICATE"], os.environ["KEY"])
        client_context = ssl.create_default_context(cafile=os.environ["CERTIFICATE"])
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context.wrap_bio(to_client, to_server, server_hostname="pigeon")
        server = server_context.wrap_bio(to_server, to_client, server_side=True)
        for end in (client, server, client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
        client.write(b"grain")
        assert server.read() == b"grain"
        return client.version()

    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", backend="ZEROMQ", rank=rank, world_size=2)
    for _ in range(2):
        other = f"worker{1 - rank}"
        assert rpc.rpc_sync(other, torch.add, args=(torch.ones(1 << 20), 1)).sum() == 2 << 20
        print(rpc.api._get_current_rpc_agent().get_debug_info()["transport.zeromq.encryption"])
        print(shake_hands())
    rpc.shutdown()
"""

AGENT = "rpc_backends_agents.agent"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(
    base: Environment, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """Make an environment with ZEROMQ, its dependencies, and no other backend."""
    made = Environment.on(base, tmp_path_factory.mktemp("zeromq"))
    made.install(*(wheels[name] for name in (CORE, "rpc-backends-agents", "rpc-backend-zeromq")))
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


def _assert_ran_on_zeromq(environment: Environment, program: str, **env: str) -> None:
    results = environment.run_workers(program, env=env)
    answers = [result.stdout.splitlines() for result in results]
    assert answers == [["[1.0, 1.0]", AGENT], ["[2.0, 2.0]", AGENT]]


def test_dependencies_are_satisfied(environment: Environment) -> None:
    environment.pip_check()


def test_an_unmodified_program_runs_on_the_default(environment: Environment) -> None:
    _assert_ran_on_zeromq(environment, DEFAULT, RPC_BACKENDS_DEFAULT="ZEROMQ")


def test_a_program_that_names_tensorpipe_runs_on_the_override(
    environment: Environment,
) -> None:
    _assert_ran_on_zeromq(environment, BY_NAME, RPC_BACKENDS_OVERRIDE="ZEROMQ")


def test_tensorpipe_options_are_carried_over_with_one_warning(
    environment: Environment,
) -> None:
    results = environment.run_workers(BY_OPTIONS, env={"RPC_BACKENDS_OVERRIDE": "ZEROMQ"})
    _, agent, timeout, threads = results[0].stdout.splitlines()
    assert agent == AGENT
    assert (timeout, threads) == ("33.0", "8")
    warnings = [line for line in results[0].stderr.splitlines() if "_transports" in line]
    assert len(warnings) == 1
    assert "_channels" in warnings[0]
    assert "ZEROMQ" in warnings[0]


@pytest.mark.thorough  # test_wheels.py runs the same commands
def test_the_quickstart_prints_the_output_in_the_readme(
    installed: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    """The test runs the README's commands in an environment that has only wheels, but all of them."""
    full = Environment.like(installed, tmp_path / "environment")
    full.install(*(wheels[name] for name in NEED_AGENTS))
    for step in quickstart.run(full.python, tmp_path):
        assert step.printed == step.shown, step.stderr


def test_the_engine_uses_no_openssl_of_the_system(environment: Environment) -> None:
    """Otherwise it would need the same version as Python's ``ssl``, and the system would need one."""
    ran = environment.run(
        """
        import ctypes
        from rpc_backend_zeromq import _native

        library = ctypes.CDLL(_native.__file__)  # and the libraries that it needs
        names = "SSL_new", "SSL_CTX_new", "EVP_EncryptInit_ex", "OPENSSL_init_crypto"
        print([name for name in names if hasattr(library, name)])
        """
    )

    assert ran.stdout.strip() == "[]"


def test_pythons_ssl_works_beside_an_encrypted_engine(
    environment: Environment, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no `openssl` here to make a certificate with")
    files = {"CERTIFICATE": str(tmp_path / "certificate.pem"), "KEY": str(tmp_path / "key.pem")}
    command = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=pigeon"]
    command += ["-addext", "subjectAltName=DNS:pigeon", "-out", files["CERTIFICATE"]]
    subprocess.run([*command, "-keyout", files["KEY"]], check=True, capture_output=True)

    results = environment.run_workers(
        BESIDE_SSL, env={"RPC_BACKENDS_ZEROMQ_ENCRYPTION": "1", **files}
    )

    assert [result.stdout.splitlines() for result in results] == [["TLS 1.3", "TLSv1.3"] * 2] * 2
