"""What the bench's workers do."""

from __future__ import annotations

import pytest

from rpc_backends_bench import worker_tasks


def test_a_load_that_cannot_call_shows_the_error_of_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_tasks, "CALL_TIMEOUT_S", 2.0)
    with (
        pytest.raises(RuntimeError, match="RPC has not been initialized"),
        worker_tasks._loading(),
    ):
        pytest.fail("the load has not started")
