"""Real groups make the store requests, calls and connections that `docs/explanation/scale.md` assumes.

If one of these tests fails, a protocol has changed: adapt `tests/support/group_counts.json` and that
page.
"""

from __future__ import annotations

import pytest

from support.scale import deviations

pytestmark = pytest.mark.slow

SIZES = [2, 4, 8]


SUBJECTS = ["TENSORPIPE", pytest.param("TENSORPIPE@torch", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_static_group_matches_the_listed_counts(subject: str, size: int) -> None:
    assert not deviations(subject, size, dynamic=False)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_join_and_leave_matches_the_listed_counts(subject: str) -> None:
    assert not deviations(subject, 4, dynamic=True)
