"""Groups of ZEROMQ cost the store requests, calls and connections of `docs/explanation/scale.md`."""

from __future__ import annotations

import pytest

from support.scale import deviations

#: The last is one more than meet by calls at shutdown.
SIZES = [2, 4, pytest.param(17, marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
def test_a_static_group_does_what_is_simulated(size: int) -> None:
    assert not deviations("ZEROMQ", size, dynamic=False)


def test_each_join_and_leave_of_a_dynamic_group_is_what_is_simulated() -> None:
    assert not deviations("ZEROMQ", 4, dynamic=True)
