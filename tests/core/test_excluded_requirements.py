"""Requirements that a backend excludes have a reason each."""

from __future__ import annotations

from typing import Any

import pytest

from rpc_backends_core import Backend


def declare(excluded: Any) -> Backend:
    return Backend(
        construct_rpc_backend_options_handler=print,
        init_backend_handler=print,
        excluded_requirements=excluded,
    )


def test_exclusions_are_kept_with_their_reasons() -> None:
    excluded = {"life.killed_peer": "the network hides lost peers"}

    assert declare(excluded).excluded_requirements == excluded
    assert isinstance(hash(declare(excluded)), int)


@pytest.mark.parametrize(
    ("excluded", "kind", "text"),
    [
        ({"life.killed_peer": ""}, ValueError, r"\['life.killed_peer'\] is empty; it must say why"),
        ({"life.killed_peer": " "}, ValueError, "is empty; it must say why"),
        ({"life.killed_peer": None}, TypeError, "'life.killed_peer': None; both must be strings"),
        (["life.killed_peer"], TypeError, "must be a dict of requirement to reason"),
    ],
)
def test_exclusions_without_a_reason_are_rejected(
    excluded: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        declare(excluded)
