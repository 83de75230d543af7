"""Groups of two processes over installed wheels, with programs that import only torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import Environment
from support.samples import MakeEnvironment, backend_package

# A call each way, an RRef, distributed autograd and a shutdown; the last line names the backend.
PROGRAM = """
    import json, os, threading, warnings
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    rank = int(os.environ["RANK"])
    me, peer = f"worker{rank}", f"worker{1 - rank}"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        INIT
        assert rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), 1)).tolist() == [2.0, 2.0]
        rref = rpc.remote(peer, torch.full, args=((3,), 7.0))
        assert rref.to_here().tolist() == [7.0] * 3
        with dist_autograd.context() as context:
            x = torch.ones(2, requires_grad=True)
            loss = rpc.rpc_sync(peer, torch.mul, args=(x, 3)).sum()
            dist_autograd.backward(context, [loss])
            assert dist_autograd.get_gradients(context)[x].tolist() == [3.0, 3.0]
        del rref
        kinds = [kind.__name__ for kind in type(rpc.api._get_current_rpc_agent()).__mro__]
        rpc.shutdown()
    import rpc_backends_core
    record = rpc_backends_core.record(BACKEND)
    print(json.dumps({"faulty": "FaultyTensorPipeAgent" in kinds, "source": record.source,
                      "distribution": record.distribution,
                      "threads": threading.active_count(),
                      "warnings": [str(warning.message) for warning in seen]}))
"""


def program_with(init: str, backend: str) -> str:
    return PROGRAM.replace("INIT", init).replace("BACKEND", repr(backend))


@pytest.mark.parametrize(
    "init",
    [
        pytest.param("rpc.init_rpc(me, rank=rank, world_size=2)", id="plain"),
        pytest.param(
            "rpc.init_rpc(me, backend='TENSORPIPE', rank=rank, world_size=2)",
            id="by name",
        ),
        pytest.param(
            "rpc.init_rpc(me, backend=rpc.BackendType.TENSORPIPE, rank=rank, world_size=2)",
            id="by member",
        ),
        pytest.param(
            "rpc.init_rpc(me, rank=rank, world_size=2, "
            "rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=4))",
            id="by the type of the options",
        ),
    ],
)
def test_tensorpipe_carries_calls(installed: Environment, init: str) -> None:
    results = installed.run_workers(program_with(init, "TENSORPIPE"))

    for result in results:
        assert result.json == {
            "faulty": False,
            "source": "plugin",
            "distribution": "rpc-backend-tensorpipe",
            "threads": 1,
            "warnings": [],
        }, result


def test_tensorpipe_carries_calls_in_a_dynamic_group(installed: Environment) -> None:
    """Joining or leaving a dynamic group waits for no worker, so the program waits for the other one."""
    results = installed.run_workers(
        """
        import os, time, torch, torch.distributed.rpc as rpc

        done = []

        def say_done():
            done.append(True)

        def wait_until(condition):
            deadline = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < deadline, "no sign of the other worker in time"
                time.sleep(0.05)

        def names():
            return {worker.name for worker in rpc.api._get_current_rpc_agent().get_worker_infos()}

        rank = int(os.environ["RANK"])
        peer = f"worker{1 - rank}"
        rpc.init_rpc(f"worker{rank}", rank=rank)
        wait_until(lambda: peer in names())
        print(rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), 1)).tolist())
        rpc.rpc_sync(peer, say_done)
        wait_until(lambda: done)
        rpc.shutdown()
        """
    )

    assert [result.stdout.strip() for result in results] == ["[2.0, 2.0]"] * 2


@pytest.mark.parametrize(
    "init",
    [
        pytest.param(
            "rpc.init_rpc(me, backend='FAULTY_TENSORPIPE', rank=rank, world_size=2)",
            id="by name",
        ),
        pytest.param(
            "rpc.init_rpc(me, backend='faulty_tensorpipe', rank=rank, world_size=2)",
            id="without regard to case",
        ),
        pytest.param(
            "rpc.init_rpc(me, backend=rpc.BackendType.FAULTY_TENSORPIPE, rank=rank, world_size=2)",
            id="by member",
        ),
    ],
)
def test_faulty_tensorpipe_carries_calls(installed: Environment, init: str) -> None:
    results = installed.run_workers(program_with(init, "FAULTY_TENSORPIPE"))

    for result in results:
        assert result.json["faulty"], result
        assert result.json["distribution"] == "rpc-backend-faulty-tensorpipe", result
        assert result.json["warnings"] == [], result


@pytest.mark.parametrize(
    "init",
    [
        "rpc.init_rpc(me, backend='PIGEON', rank=rank, world_size=2)",
        "from rpc_backend_pigeon import Options; "
        "rpc.init_rpc(me, rank=rank, world_size=2, rpc_backend_options=Options())",
    ],
    ids=["by name", "by the type of the options"],
)
def test_a_third_party_package_carries_calls(
    make_environment: MakeEnvironment, tmp_path: Path, init: str
) -> None:
    environment = make_environment(backend_package(tmp_path))

    results = environment.run_workers(program_with(init, "PIGEON"))

    for result in results:
        assert result.json["distribution"] == "rpc-backend-pigeon", result


def test_a_failing_message_fails_the_call(installed: Environment) -> None:
    results = installed.run_workers(
        """
        import os, torch, torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        options = rpc.backend_registry.construct_rpc_backend_options(
            rpc.BackendType.FAULTY_TENSORPIPE, messages_to_fail=["SCRIPT_CALL"], num_fail_sends=1)
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
        if rank == 0:
            for attempt in range(2):
                try:
                    print(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1)).item())
                except (RuntimeError, UnicodeDecodeError) as error:
                    # torch puts the message's bytes into the text, which may then not be UTF-8.
                    print("failed")
        rpc.shutdown()
        """
    )

    assert results[0].stdout.split() == ["failed", "2.0"]
