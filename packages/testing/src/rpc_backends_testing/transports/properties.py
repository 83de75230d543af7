"""Property-based tests with Hypothesis: what must hold for any messages.

Every run tries the same examples. A failing one is made smaller for a few seconds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, strategies

T = TypeVar("T")

#: How many seconds to spend on making a failing example smaller. One that hangs uses up a time limit.
SHRINKING = 10.0


def holds_for(
    check: Callable[[T], None], examples_of: strategies.SearchStrategy[T], *, examples: int
) -> None:
    """Check that ``check`` raises nothing for any example.

    :param examples: how many are tried.
    :raises Exception: what ``check`` raises for the smallest failing example that was found.
    """
    failed: dict[str, Exception] = {}
    ends = math.inf

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(examples_of)
    def run(example: T) -> None:
        nonlocal ends
        key = repr(example)
        if key in failed:
            raise failed[key]
        if time.monotonic() > ends:
            raise _EnoughError
        try:
            check(example)
        except Exception as error:
            failed[key] = error
            ends = min(ends, time.monotonic() + SHRINKING)
            raise

    with contextlib.suppress(_EnoughError):
        run()
        return
    raise failed[min(failed, key=len)]


class _EnoughError(BaseException):
    """Ends Hypothesis, which catches every `Exception`."""
