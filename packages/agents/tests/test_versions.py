"""The agents check the version of the core's interface, and whether there is a build for torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rpc_backends_agents
from rpc_backends_agents.versions import SPI_VERSION
from rpc_backends_core import spi

MAJOR, MINOR = SPI_VERSION


@pytest.mark.parametrize("version", [SPI_VERSION, (MAJOR, MINOR + 1)])
def test_a_core_that_fits_is_accepted(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    monkeypatch.setattr(spi, "SPI_VERSION", version)
    assert callable(rpc_backends_agents.__getattr__("start_agent"))


@pytest.mark.parametrize(
    ("version", "upgrade"),
    [
        ((MAJOR, MINOR - 1), "Upgrade the core: pip install --upgrade rpc-backends-core"),
        ((MAJOR - 1, 99), "Upgrade the core: pip install --upgrade rpc-backends-core"),
        ((MAJOR + 1, 0), "Upgrade the agents: pip install --upgrade rpc-backends-agents"),
    ],
    ids=["older by a minor number", "older by a major number", "newer by a major number"],
)
def test_another_core_is_refused_with_what_to_upgrade(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], upgrade: str
) -> None:
    monkeypatch.setattr(spi, "SPI_VERSION", version)
    with pytest.raises(spi.SpiVersionError) as caught:
        rpc_backends_agents.__getattr__("start_agent")
    for part in (f"version {MAJOR}.{MINOR} of", ".".join(map(str, version)), upgrade):
        assert part in str(caught.value)


def test_a_start_with_an_unknown_torch_ends_with_the_command() -> None:
    program = """
import torch
torch.__version__ = "2.99.0"
import rpc_backends_agents
rpc_backends_agents.start_agent
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "MissingBuildError: rpc-backends-agents has no build for torch 2.99.0" in last
    assert "rpc-backends build-agents" in last
