"""What errors say about messages that cannot be unpickled."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any

import pytest

from rpc_backends_core._bridge import results


def test_an_error_reads_only_the_start_of_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer whose message is refused at once must not cost the time to read all of it."""
    genops = pickletools.genops
    read = 0

    def counted(data: bytes) -> Iterator[Any]:
        nonlocal read
        for each in genops(data):
            read += 1
            yield each

    monkeypatch.setattr(pickletools, "genops", counted)
    results._scanned(b"\x80\x04" + b"N0" * 100_000 + b"N.")
    assert read < 10_000
