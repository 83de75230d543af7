"""The agents check the versions of the core's interface and of torch."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("installed", ["2.5.1", "3.13.0+cu130"])
def test_another_torch_is_refused_with_a_command(
    monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    monkeypatch.setattr(torch, "__version__", installed)
    with pytest.raises(ImportError, match=r"was compiled for torch 2\.\d+, ") as caught:
        rpc_backends_agents.__getattr__("start_agent")
    assert f"torch {installed} is installed" in str(caught.value)
    assert "pip install --force-reinstall --no-deps --no-build-isolation" in str(caught.value)


def test_another_build_of_the_same_torch_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    minor = ".".join(torch.__version__.split(".")[:2])
    monkeypatch.setattr(torch, "__version__", f"{minor}.99+cu130")
    assert callable(rpc_backends_agents.__getattr__("start_agent"))
