"""Torch's own backend-neutral suites, for the backend under test."""

from __future__ import annotations

from rpc_backends_core import Capability
from rpc_backends_testing.marks import requirement
from rpc_backends_testing.torch_tier.fixture import Fixture
from rpc_backends_testing.torch_tier.generation import GENERIC, generate

for _name, _class in generate("Torch", Fixture, GENERIC, __name__).items():
    _needs = Capability.TORCHSCRIPT if "Jit" in _name else None
    _class.pytestmark = [requirement("torch", capability=_needs)]
    globals()[_name] = _class

del _name, _class, _needs  # pytest would collect the last class again
