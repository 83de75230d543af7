"""Torch's own suites for tensors on CUDA devices, where there are such devices."""

from __future__ import annotations

import unittest
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_testing.marks import requirement
from rpc_backends_testing.torch_tier.fixture import Fixture
from rpc_backends_testing.torch_tier.generation import CUDA, generate

#: Tests that pass torch's `TensorPipeRpcBackendOptions`, which no other backend accepts.
OF_TENSORPIPE = (
    "test_device_maps_in_options",
    "test_devices_option_mismatch",
    "test_devices_option_mismatch_reverse",
)


def _send_without_map(self: Any, mode: Any) -> None:
    """Send a tensor without a device map; torch's test looks for a text that names TensorPipe."""
    to = f"worker{(self.rank + 1) % self.world_size}"
    x = torch.ones(2, device="cuda:0")
    with self.assertRaisesRegex(RuntimeError, "Request device mapping is not available"):
        if mode == rpc.api.RPCExecMode.REMOTE:
            rpc.remote(to, torch.neg, args=(x,)).to_here()
        else:
            rpc.rpc_sync(to, torch.neg, args=(x,))
    self.assertEqual(rpc.rpc_sync(to, torch.neg, args=(x.cpu(),)), -x.cpu())


# Nothing of CUDA starts here: this only asks how many devices there are.
if torch.cuda.device_count():
    for _name, _class in generate("Torch", Fixture, CUDA, __name__).items():
        _class.pytestmark = [requirement("torch", capability=Capability.DEVICE_MAPS)]
        if hasattr(_class, "_test_device_maps_missing_config"):
            _class._test_device_maps_missing_config = _send_without_map
        for _test in OF_TENSORPIPE:
            if hasattr(_class, _test):
                _skip = unittest.skip("it passes options of TENSORPIPE")
                setattr(_class, _test, _skip(getattr(_class, _test)))
        globals()[_name] = _class
    del _name, _class, _test  # pytest would collect the last class again
else:

    @requirement("torch", capability=Capability.DEVICE_MAPS)
    def test_cuda() -> None:
        """Torch's suites for CUDA, in place of all of their tests."""
        pytest.skip("it needs a CUDA device, and this machine has none")
