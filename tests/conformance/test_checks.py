"""Checks fail when they should, and their errors state the call, the expected and the actual result."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from rpc_backends_testing.checks import Call, DeviationError, doing, expect, fact, sync


def _fail(error: Exception) -> Call:
    def run() -> Any:
        raise error

    return doing("do it", run)


def _deviation(error: pytest.ExceptionInfo[DeviationError]) -> tuple[str, str, str]:
    deviation = error.value.deviation
    return deviation.call, deviation.expected, deviation.got


def test_a_value_that_is_as_expected_passes() -> None:
    expect(fact("three", 3)).gives(3)


def test_another_value_fails() -> None:
    with pytest.raises(DeviationError) as caught:
        expect(fact("three", 3)).gives(4)
    assert _deviation(caught) == ("three", "4", "3")


def test_an_error_instead_of_a_value_fails() -> None:
    with pytest.raises(DeviationError) as caught:
        expect(_fail(ValueError("no"))).gives(4)
    assert _deviation(caught) == ("do it", "a result", "ValueError: no")


def test_the_expected_error_passes_and_is_returned() -> None:
    error = ValueError("no way")
    assert expect(_fail(error)).raises(ValueError, "no w.y") is error


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (fact("do it", 3), "no error; it returned 3"),
        (_fail(KeyError("no way")), "KeyError: 'no way'"),
        (_fail(ValueError("yes")), "ValueError: yes"),
    ],
    ids=["no error", "other type", "other text"],
)
def test_another_error_fails(call: Call, got: str) -> None:
    with pytest.raises(DeviationError) as caught:
        expect(call).raises(ValueError, "no way")
    assert _deviation(caught) == ("do it", "ValueError with 'no way' in its text", got)


def test_a_value_that_does_not_satisfy_fails() -> None:
    with pytest.raises(DeviationError) as caught:
        expect(fact("three", 3)).satisfies("an even number", lambda value: value % 2 == 0)
    assert _deviation(caught) == ("three", "an even number", "3")


def test_a_call_is_shown_as_code() -> None:
    call = sync("worker1", torch.add, args=(torch.ones(2), 1), timeout=0.5)
    assert (
        call.text
        == "rpc_sync('worker1', torch.add, args=(<tensor float32, shape (2,)>, 1), timeout=0.5)"
    )


def test_a_deviation_travels_between_processes() -> None:
    with pytest.raises(DeviationError) as caught:
        expect(fact("three", 3)).gives(4)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.deviation == caught.value.deviation
    assert str(again) == str(caught.value)
