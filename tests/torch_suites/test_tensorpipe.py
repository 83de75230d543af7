"""Torch's suites for TENSORPIPE: the generic ones and those for TensorPipe's own options."""

from __future__ import annotations

import pytest

from . import suites

pytestmark = pytest.mark.torch_suites

#: The other classes test, above all, what torch itself does above the agent.
_OF_THE_AGENT = {"TensorPipeRpcTest", "TensorPipeTensorPipeAgentRpcTest"}

for _name, _class in suites.generate(suites.TENSORPIPE, __name__).items():
    _class.pytestmark = [] if _name in _OF_THE_AGENT else [pytest.mark.thorough]
    globals()[_name] = _class

del _name, _class  # pytest would collect the last class again
