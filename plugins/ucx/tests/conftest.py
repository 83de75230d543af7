"""What the tests of UCX share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.secret import Secret

_FOREIGN = ("RPC_BACKENDS_", "MASTER_", "TORCHELASTIC_", "UCX_")


@pytest.fixture(autouse=True)
def _only_our_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture
def text() -> str:
    """Return the text of a new secret."""
    return secret.generate()


@pytest.fixture
def a_secret(text: str) -> Secret:
    """Return a secret."""
    return secret.parse(text, "the test")


@pytest.fixture
def shared_memory_files() -> Iterator[set[str]]:
    """Return the files of UCX in /dev/shm, and check after the test that there are no others."""
    before = _ucx_files()
    yield before
    # A file keeps its name for a moment, until the worker that creates it has opened it.
    until = time.monotonic() + 10
    while left := _ucx_files() - before:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def _ucx_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("ucx_*")}
