"""Real groups make the store requests, calls and connections that `docs/explanation/scale.md` counts on.

If one of these fails, a protocol has changed: `benchmarks/scale/protocols.py` has to follow, and what the
page says of larger groups has to be drawn anew.
"""

from __future__ import annotations

import pytest

from support.scale import deviations

SIZES = [2, 4, pytest.param(8, marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subject", ["TENSORPIPE", "TENSORPIPE@torch"])
def test_a_static_group_matches_the_simulation(subject: str, size: int) -> None:
    assert not deviations(subject, size, dynamic=False)


@pytest.mark.parametrize("subject", ["TENSORPIPE", "TENSORPIPE@torch"])
def test_each_join_and_leave_matches_the_simulation(subject: str) -> None:
    assert not deviations(subject, 4, dynamic=True)
