"""The devices that a worker declares."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core.spi import device_maps


def test_no_accelerator_is_probed_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch 2.6 and 2.7, two functions of torch.accelerator raise if there is no accelerator."""

    def fail() -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", fail)
    monkeypatch.setattr(torch.accelerator, "device_count", fail)

    here = device_maps.WorkerDevices.of_this_process("worker0", rpc.TensorPipeRpcBackendOptions())

    assert (here.accelerator, here.count) == (None, 0)
