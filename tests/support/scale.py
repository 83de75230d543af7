"""The programs of `benchmarks/scale`, for tests that compare real groups with simulated ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "scale"))

import carrying
import comparing
import counting
import store_protocol
import store_relay

from rpc_backends_bench.subjects import parse

__all__ = ["carrying", "comparing", "counting", "deviations", "store_protocol", "store_relay"]


def deviations(subject: str, size: int, *, dynamic: bool) -> list[str]:
    """Run a real group, which must not fail; return how it differs from the simulation."""
    count = (counting.count_dynamic if dynamic else counting.count_static)(parse(subject), size)
    assert not count.failed, count.failed
    assert not count.left_out, count.left_out
    assert len(count.phases) == (2 * size if dynamic else 5)
    return comparing.differences(count)
