"""Torch's suites for FAULTY_TENSORPIPE, which fails and delays messages on request."""

from __future__ import annotations

import pytest
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
    FaultyRpcAgentTestFixture,
)

from . import suites

pytestmark = pytest.mark.torch_suites

globals().update(suites.generate(suites.FAULTY_TENSORPIPE, FaultyRpcAgentTestFixture, __name__))
