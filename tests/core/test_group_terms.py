"""What members of a group state of themselves, and demand of each other."""

from __future__ import annotations

from typing import Any

import pytest

from rpc_backends_core._group import terms
from rpc_backends_core.spi import GroupTerm


def read(*given: GroupTerm) -> dict[str, GroupTerm]:
    """Return terms as another worker reads them."""
    return terms.read(terms.written(given))


def test_terms_are_read_as_they_were_written() -> None:
    term = GroupTerm("policy", "sha256 12", "same", "Set it.")
    assert read(term) == {"policy": term}


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ([], [], None),
        ([("policy", "1", "")], [], None),
        ([("policy", "1", "any")], [("policy", "2", "")], None),
        ([("policy", "1", "same")], [("policy", "1", "same")], None),
        ([("policy", "1", "any")], [], "RPC worker b has no policy, and a requires one of all members."),
        ([], [("policy", "1", "any")], "RPC worker a has no policy, and b requires one of all members."),
        ([("policy", "1", "any")], [("lock", "1", "")], "RPC worker b has no policy"),
        ([("policy", "1", "same")], [("policy", "2", "")], "RPC worker b has another policy (2) than"),
    ],
)  # fmt: skip
def test_a_demand_that_is_not_met_names_both_workers(
    first: list[Any], second: list[Any], problem: str | None
) -> None:
    disagreement = terms.disagreement(
        {
            "a": read(*(GroupTerm(*term) for term in first)),
            "b": read(*(GroupTerm(*term) for term in second)),
        }
    )
    assert (disagreement is None) == (problem is None)
    assert disagreement is None or disagreement.startswith(str(problem))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"policy": []},
        {"policy": ["1", "any"]},
        {"policy": ["1", "any", 3]},
        {"policy": ["1", "perhaps", ""]},
        {"policy": ["x" * 10_000, "any", ""]},
        {"policy": ["a\nb", "any", ""]},
        {str(number): ["", "", ""] for number in range(20)},
    ],
)
def test_what_no_worker_writes_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"terms|GroupTerm"):
        terms.read(value)


def test_an_unknown_demand_is_refused() -> None:
    with pytest.raises(ValueError, match="it must be one of"):
        GroupTerm("policy", "1", "perhaps")
