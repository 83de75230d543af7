"""The threads that wait for RRefs."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from torch.distributed import rpc

from rpc_backends_guard.presence import Presence


def test_waits_work_again_after_a_time_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(rpc, "get_rpc_timeout", lambda: 10.0)  # there is no agent
    presence, rref = Presence(threads=4), SimpleNamespace(local_value=lambda: 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(4):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                presence.wait(rref, "worker1")

    assert presence.wait(rref, "worker1")
