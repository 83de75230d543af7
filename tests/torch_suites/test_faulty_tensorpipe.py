"""Torch's suites for FAULTY_TENSORPIPE, which fails and delays messages on request."""

from __future__ import annotations

import pytest

from . import suites

pytestmark = pytest.mark.torch_suites

globals().update(suites.generate(suites.FAULTY_TENSORPIPE, __name__))
