"""A worker warns at its start if its descriptor limit is too low for its group."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backend_zeromq import descriptors

WORKERS = 20


@pytest.fixture
def wanted() -> Iterator[int]:
    """Yield the descriptors that a group of 20 needs; restore this process's limit afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield descriptors.needed(len(list(Path("/proc/self/fd").iterdir())), WORKERS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit(number: int) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )


def test_too_low_a_limit_is_told_with_the_number_needed(
    wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    limit(wanted - 10)
    descriptors.warn_if_few("worker3", WORKERS)
    (line,) = caplog.messages
    assert "worker3" in line
    assert f"{wanted - 10} descriptors" in line
    assert "20 workers" in line
    assert f"ulimit -n {wanted}" in line


def test_nothing_is_said_of_a_limit_that_is_enough(
    wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    limit(wanted)
    descriptors.warn_if_few("worker3", WORKERS)
    assert not caplog.messages
