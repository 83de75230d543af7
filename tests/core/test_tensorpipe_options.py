"""The options of TENSORPIPE for a torch without TensorPipe are like torch's own, beside them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core._tensorpipe_options import TensorPipeRpcBackendOptions

Torchs: Any = rpc.TensorPipeRpcBackendOptions
BOTH = pytest.mark.parametrize("kind", [Torchs, TensorPipeRpcBackendOptions], ids=["torch", "ours"])
MAPS = {"worker1": {"cuda:0": "cuda:1", torch.device("cuda:2"): "cuda:3"}}
VALUES = {
    "rpc_timeout": 7.5,
    "init_method": "file:///there",
    "num_worker_threads": 3,
    "device_maps": MAPS,
    "devices": ["cuda:0", torch.device("cuda:1")],
}


def test_the_constructor_takes_torchs_arguments_with_torchs_defaults() -> None:
    assert [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(TensorPipeRpcBackendOptions).parameters.values()
    ] == [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(Torchs).parameters.values()
    ]


@pytest.mark.parametrize("values", [{}, VALUES])
def test_the_attributes_have_the_values_of_torchs(values: dict[str, Any]) -> None:
    torchs, ours = Torchs(**values), TensorPipeRpcBackendOptions(**values)
    assert isinstance(ours, rpc.RpcBackendOptions)
    for name in VALUES:
        assert getattr(ours, name) == getattr(torchs, name), name


@BOTH
def test_entries_are_added_to_device_maps(kind: Any) -> None:
    options = kind(device_maps=MAPS)
    options.set_device_map("worker1", {"cuda:4": "cuda:5"})
    options.set_devices(["cuda:4"])
    assert options.device_maps["worker1"][torch.device("cuda:4")] == torch.device("cuda:5")
    assert options.devices == [torch.device("cuda:4")]


@BOTH
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda kind: kind(num_threads=3), TypeError, "num_threads"),
        (lambda kind: kind(num_worker_threads="x"), TypeError, "num_worker_threads"),
        (lambda kind: kind(init_method=3), TypeError, "init_method"),
        (lambda kind: kind(rpc_timeout="x"), TypeError, "rpc_timeout"),
        (lambda kind: kind(rpc_timeout=-1), RuntimeError, "(?i)rpc.timeout"),
        (lambda kind: kind(num_worker_threads=0), RuntimeError, "must be positive, got 0"),
        (lambda kind: kind(devices=["cpu"]), ValueError, "expect a list of CUDA devices"),
        (
            lambda kind: kind(device_maps={"a": {"cuda:0": "cuda:1", "cuda:2": "cuda:1"}}),
            ValueError,
            "only supports 1-to-1 mapping",
        ),
        (
            lambda kind: kind(device_maps=MAPS).set_device_map("worker1", {"cuda:0": "cuda:3"}),
            ValueError,
            "only supports 1-to-1 mapping",
        ),
    ],
)
def test_an_error_is_that_of_torchs(kind: Any, change: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        change(kind)
