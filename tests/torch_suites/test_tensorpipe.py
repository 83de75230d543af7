"""Torch's suites for TENSORPIPE: the generic ones and those for TensorPipe's own options."""

from __future__ import annotations

import pytest
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)

from . import suites

pytestmark = pytest.mark.torch_suites

globals().update(suites.generate(suites.TENSORPIPE, TensorPipeRpcAgentTestFixture, __name__))
