"""Torch's suites for TENSORPIPE: the generic ones and those for TensorPipe's own options."""

from __future__ import annotations

import pytest

from . import suites

pytestmark = pytest.mark.torch_suites

globals().update(suites.generate(suites.TENSORPIPE, __name__))
