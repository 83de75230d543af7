"""A worker that cannot use the shared memory fails at the start, with the reason and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rpc_backend_ucx import shared_memory
from rpc_backend_ucx.processes import this_process
from rpc_backend_ucx.shared_memory import PER_WORKER, Room
from rpc_backends_agents.engine.errors import AddressError

pytestmark = pytest.mark.slow

_TESTS = str(Path(__file__).parents[3] / "tests")
#: Starts a worker of a group and prints its error.
_WORKER = """
import sys
import torch.distributed.rpc as rpc
url, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
from rpc_backend_ucx import UCXRpcBackendOptions
try:
    rpc.init_rpc(f"worker{rank}", backend="UCX", rank=rank, world_size=world,
                 rpc_backend_options=UCXRpcBackendOptions(init_method=url))
except Exception as error:
    print(error)
else:
    print("started")
"""
#: Sends messages of 20 kB to a worker that sends them back; prints how many came back.
_LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
from support.ucx_transports import Echo, next_event, transport
me = transport(0)
with Echo(me):
    for _ in range(3000):
        me.send(1, [bytes(20_000)], False)
    print(sum(next_event(me)[0] == "message" for _ in range(3000)))
"""


def unshared(
    *options: str, code: str, arguments: list[str], size: str = ""
) -> subprocess.Popen[str]:
    """Start Python in namespaces of its own; ``size``: of its ``/dev/shm``."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    script = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && " if size else ""
    command = ["sh", "-c", f'{script}exec "$@"', "sh", sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        ["unshare", "--fork", "--kill-child", *options, *command], stdout=subprocess.PIPE, text=True
    )


def output(process: subprocess.Popen[str]) -> str:
    """Return what a process prints."""
    return process.communicate(timeout=120)[0]


def test_a_start_with_a_small_dev_shm_says_what_is_needed(tmp_path: Path) -> None:
    arguments = [f"file://{tmp_path}/store", "0", "1"]
    error = output(unshared("--mount", code=_WORKER, arguments=arguments, size="4m"))

    assert "/dev/shm has 4 MiB" in error
    assert "up to 20 MiB of it for each worker" in error
    assert "--shm-size" in error


def test_a_start_with_a_read_only_dev_shm_names_it(tmp_path: Path) -> None:
    arguments = [f"file://{tmp_path}/store", "0", "1"]
    worker = unshared("--mount", code=_WORKER, arguments=arguments, size="64m,ro")
    text = output(worker)
    assert "worker 'worker0' cannot start: /dev/shm cannot be written to" in text


def test_workers_in_other_pid_namespaces_are_refused_at_the_start(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    workers = [
        unshared("--mount", *options, code=_WORKER, arguments=[url, str(rank), "2"])
        for rank, options in enumerate([(), ("--pid", "--mount-proc")])
    ]

    for worker in workers:
        error = output(worker)
        assert "cannot reach worker" in error
        assert "in another PID namespace" in error


def test_workers_in_other_network_namespaces_are_refused_at_the_start(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    workers = [
        unshared("--mount", *options, code=_WORKER, arguments=[url, str(rank), "2"])
        for rank, options in enumerate([(), ("--net",)])
    ]

    for worker in workers:
        error = output(worker)
        assert "cannot reach worker" in error
        assert "in another network namespace" in error
        assert "RPC_BACKENDS_UCX_TRANSPORTS=self,tcp" in error


def test_a_worker_uses_the_last_bytes_of_dev_shm() -> None:
    """By default UCX gives up, and crashes, as soon as less than 16 MiB are free."""
    assert output(unshared("--mount", code=_LOAD, arguments=[_TESTS], size="40m")) == "3000\n"


def test_room_for_one_worker_is_checked_where_shared_memory_is_used() -> None:
    small = Room("/dev/shm", 64 << 20, PER_WORKER - 1)

    with pytest.raises(AddressError, match="/dev/shm has 64 MiB, of which 20 MiB are free"):
        shared_memory.check_room(("self", "posix", "cma"), small)
    assert "Enlarge it" in (shared_memory.check_room(("posix", "tcp"), small) or "")
    assert shared_memory.check_room(("self", "tcp"), small) is None
    assert shared_memory.check_room(("posix",), replace(small, free=PER_WORKER)) is None


def test_more_workers_than_dev_shm_holds_cause_a_warning() -> None:
    docker = Room("/dev/shm", 64 << 20, 64 << 20)

    assert shared_memory.crowd(3, docker) is None
    assert "4 workers of this host may take up to 80 MiB" in (shared_memory.crowd(4, docker) or "")


@pytest.mark.parametrize("kind", ["ipc", "user"])
def test_other_namespaces_without_shared_memory_are_named(kind: str) -> None:
    isolated = replace(this_process(), **{f"{kind}_namespace": "1:2"})

    with pytest.raises(AddressError, match=rf"in another (?i:{kind}) namespace"):
        shared_memory.check_namespaces(this_process(), isolated, "worker 'a'", "worker 'b'")
