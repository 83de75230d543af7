"""Groups of ZEROMQ cost the store requests, calls and connections of `docs/explanation/scale.md`."""

from __future__ import annotations

import pytest

from support.scale import deviations

pytestmark = pytest.mark.slow

#: Groups of up to 16 workers meet by calls at shutdown, larger ones through the store.
SIZES = [2, 4, 17]


@pytest.mark.parametrize("size", SIZES)
def test_a_static_group_matches_the_listed_counts(size: int) -> None:
    assert not deviations("ZEROMQ", size, dynamic=False)


def test_dynamic_joins_and_leaves_match_the_listed_counts() -> None:
    assert not deviations("ZEROMQ", 4, dynamic=True)
