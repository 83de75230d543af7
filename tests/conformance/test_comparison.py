"""The comparison finds differences and describes them."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rpc_backends_testing.comparison import describe, difference

Pair = namedtuple("Pair", "left right")


@dataclass
class Point:
    x: float
    where: torch.Tensor


def _quiet_nan(payload: int) -> torch.Tensor:
    return torch.tensor([0x7FC00000 | payload], dtype=torch.int32).view(torch.float32)


def _double(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


ONES = torch.ones(2, 3)
SAME = {
    "tensor": (ONES, ONES.clone()),
    "other strides": (ONES.t(), torch.ones(3, 2)),
    "nan": (torch.tensor([math.nan]), torch.tensor([math.nan])),
    "empty": (torch.empty(0, 3), torch.empty(0, 3)),
    "zero-dim": (torch.tensor(3), torch.tensor(3)),
    "bfloat16": (ONES.bfloat16(), ONES.bfloat16()),
    "float8": (ONES.to(torch.float8_e5m2), ONES.to(torch.float8_e5m2)),
    "view with an offset": (torch.arange(6)[2:4], torch.tensor([2, 3])),
    "conj": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    "sparse": (ONES.to_sparse(), ONES.to_sparse()),
    "csr": (ONES.to_sparse_csr(), ONES.to_sparse_csr()),
    "quantized": (
        torch.quantize_per_tensor(ONES, 0.1, 3, torch.qint8),
        torch.quantize_per_tensor(ONES, 0.1, 3, torch.qint8),
    ),
    "float nan": (math.nan, math.nan),
    "containers": ({"a": [ONES, (1, None)]}, {"a": [ONES.clone(), (1, None)]}),
    "namedtuple": (Pair(1, ONES), Pair(1, ONES.clone())),
    "dataclass": (Point(1.0, ONES), Point(1.0, ONES.clone())),
    "set": ({1, 2}, {2, 1}),
}
DIFFERENT: dict[str, tuple[Any, Any, str, str]] = {
    "dtype": (ONES.bfloat16(), ONES, "bfloat16", "float32"),
    "shape": (ONES, ONES.t(), "(2, 3)", "(3, 2)"),
    "layout": (ONES.to_sparse(), ONES, "sparse_coo", "strided"),
    "requires_grad": (ONES.clone().requires_grad_(), ONES, "True", "False"),
    "one element": (torch.arange(6), torch.tensor([0, 1, 2, 9, 4, 5]), "[3] is 3", "9"),
    "one bit": (torch.tensor([0.0]), torch.tensor([-0.0]), "00 00 00 00", "00 00 00 80"),
    "payload of nan": (_quiet_nan(0), _quiet_nan(1), "00 00 c0 7f", "01 00 c0 7f"),
    "sparse values": (ONES.to_sparse(), (2 * ONES).to_sparse(), "_values()", "2.0"),
    "zero-dim": (torch.tensor(3), torch.tensor(4), "the value is 3", "4"),
    "parameter": (torch.nn.Parameter(ONES), ONES, "Parameter", "Tensor"),
    "length": ([1, 2], [1], "2 elements", "1 elements"),
    "deep": ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 3.0}]}, "['a'][1]['b']: 2.0", "3.0"),
    "keys": ({"a": 1}, {"b": 1}, "'a'", "'b'"),
    "order of keys": (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), "['a', 'b']", "['b', 'a']"),
    "int for bool": (True, 1, "bool", "int"),
    "tuple for list": ([1], (1,), "list", "tuple"),
    "sign of zero": (0.0, -0.0, "0.0", "-0.0"),
    "payload of a float": (_double(0x7FF8 << 48), _double((0x7FF8 << 48) | 1), "nan", "nan"),
    "dataclass": (Point(1.0, ONES), Point(2.0, ONES), ".x: 1.0", "2.0"),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_values_have_no_difference(name: str) -> None:
    want, got = SAME[name]
    assert difference(want, got) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_described_for_both_values(name: str) -> None:
    want, got, expected_words, got_words = DIFFERENT[name]
    deviation = difference(want, got)
    assert deviation is not None
    assert expected_words in deviation.expected
    assert got_words in deviation.got


def test_the_number_of_different_elements_is_shown() -> None:
    deviation = difference(torch.zeros(10), torch.cat([torch.zeros(8), torch.ones(2)]))
    assert deviation is not None
    assert "2 of 10 elements differ" in deviation.got


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ONES, "<tensor float32, shape (2, 3)>"),
        (ONES.t(), "<tensor float32, shape (3, 2), strides (1, 3)>"),
        (torch.nn.Parameter(ONES), "<Parameter float32, shape (2, 3), requires_grad>"),
        (ONES.to_sparse(), "<tensor float32, shape (2, 3), sparse_coo>"),
        ([ONES, ONES, ONES, ONES], "and 1 more"),
    ],
)
def test_a_tensor_is_described_by_its_properties(value: Any, text: str) -> None:
    assert text in describe(value)


def test_long_values_are_cut() -> None:
    assert len(describe("x" * 10_000)) < 200
