"""A worker warns at its start if its descriptor limit is too low for its group."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

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
