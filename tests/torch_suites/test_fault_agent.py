"""Torch's suites for FAULTY_TENSORPIPE with injected faults on other backends.

Torch's fixture is unchanged: its options become rules, and an override puts the backend in the place of
FAULTY_TENSORPIPE.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from rpc_backends_core._settings import DENY, OVERRIDE
from rpc_backends_testing.torch_tier import generation
from rpc_backends_testing.torch_tier.generation import rpc_utils

from . import suites

pytestmark = pytest.mark.torch_suites

_PREFIXES = {"TENSORPIPE": "FaultsTensorPipe", "ZEROMQ": "FaultsZeroMQ"}


def _fixture(backend: str) -> type[Any]:
    from torch.testing._internal.distributed.rpc import faulty_rpc_agent_test_fixture as torchs

    class Fixture(torchs.FaultyRpcAgentTestFixture):
        """The processes of a test read these options before they start RPC."""

        @property
        def rpc_backend_options(self) -> Any:
            from rpc_backends_faults import old_options, settings
            from rpc_backends_faults.rules import RuleSet

            os.environ.pop(DENY, None)
            options = super().rpc_backend_options
            os.environ[OVERRIDE] = backend
            # FAULTY_TENSORPIPE is denied, because it would pass these tests without injected faults.
            os.environ[DENY] = "FAULTY_TENSORPIPE"
            rules = old_options.rules(
                options.messages_to_fail, options.messages_to_delay, options.num_fail_sends
            )
            settings.enable(RuleSet(tuple(rules)))
            return options

    return Fixture


if generation.bridge_is_installed():  # stock torch has no override
    for _backend, _prefix in _PREFIXES.items():
        for _name, _class in generation.generate(
            _prefix, _fixture(_backend), rpc_utils.FAULTY_AGENT_TESTS, __name__
        ).items():
            # The same rules and interceptors inject the faults on both backends.
            _class.pytestmark = [pytest.mark.thorough] if _backend == "TENSORPIPE" else []
            globals()[_name] = _class
    del _name, _class  # pytest would collect the last class again


def test_torchs_faulty_suites_are_complete_for_each_backend(torch_suites_stock: bool) -> None:
    release = suites.torch_release()
    if torch_suites_stock or release not in suites.EXPECTED_TESTS:
        pytest.skip(f"stock torch, or torch {release}, whose tests were not counted")
    for prefix in _PREFIXES.values():
        tests = sum(
            suites._count(class_) for name, class_ in globals().items() if name.startswith(prefix)
        )
        assert tests == suites.EXPECTED_TESTS[release]["FAULTY_TENSORPIPE"]
