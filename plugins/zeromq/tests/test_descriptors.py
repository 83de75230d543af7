"""A worker warns if its descriptor limit is too low for its group, and works on when none is left."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from rpc_backend_zeromq import descriptors

WORKERS = 20


@pytest.fixture
def required() -> Iterator[int]:
    """Yield how many descriptors a group of 20 needs; restore this process's limit afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield descriptors.needed(len(list(Path("/proc/self/fd").iterdir())), WORKERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def set_limit(number: int) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def test_the_warning_names_the_required_limit(
    required: int, caplog: pytest.LogCaptureFixture
) -> None:
    set_limit(required - 10)
    descriptors.warn_if_few("worker3", WORKERS)
    (line,) = caplog.messages
    assert "worker3" in line
    assert f"{required - 10} descriptors" in line
    assert "20 workers" in line
    assert f"ulimit -n {required}" in line


def test_a_sufficient_limit_causes_no_warning(
    required: int, caplog: pytest.LogCaptureFixture
) -> None:
    set_limit(required)
    descriptors.warn_if_few("worker3", WORKERS)
    assert not caplog.messages


#: A program that uses up its descriptors. It runs in a fresh process, because workers of the fork server
#: have imported already what is imported with the first call and the first error.
EXHAUSTED = """
    import logging, os, resource, sys

    def fail():
        raise ValueError("as expected")

    def use_up_descriptors():
        limit = 1 + max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError:
            logging.warning("no descriptors are left")
"""


def run_exhausted(code: str) -> str:
    """Run a program after `EXHAUSTED`; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(EXHAUSTED) + dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "no descriptors are left" in output
    return output


def test_a_refusal_without_descriptors_is_logged() -> None:
    output = run_exhausted(
        """
        from rpc_backends_agents.engine.admission_control import Refusals
        refused = Refusals("ZEROMQ", "w0")
        use_up_descriptors()
        refused("its key is unknown\\n")
        """
    )
    assert "ZEROMQ worker 'w0' refused a connection: its key is unknown\\n" in output


def test_the_first_call_without_descriptors_succeeds(tmp_path: Path) -> None:
    """Its error arrives, and the worker shuts down."""
    output = run_exhausted(
        f"""
        from rpc_backend_zeromq import ZeroMQRpcBackendOptions
        from torch.distributed import rpc
        rpc.init_rpc(
            "w0",
            rank=0,
            world_size=1,
            backend="ZEROMQ",
            rpc_backend_options=ZeroMQRpcBackendOptions(init_method="file://{tmp_path}/store"),
        )
        use_up_descriptors()
        try:
            rpc.rpc_sync("w0", fail)
        except ValueError as error:
            print("the error is", type(error).__name__)
        rpc.shutdown()
        print("has shut down")
        """
    )
    assert "the error is ValueError" in output
    assert "has shut down" in output
