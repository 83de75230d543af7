"""`doctor` finds a name server that makes groups start slowly."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest

from rpc_backends_cli import name_server
from rpc_backends_cli.name_server import LIMIT, LOOKUPS, SLOW, check


def test_quick_answers_are_ok_and_the_longest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "SLOW", 60)  # a busy machine may suspend the thread that asks
    asked: list[str] = []

    (finding,) = check("192.0.2.7", asked.append, limit=60).findings

    assert asked == ["::ffff:192.0.2.7"] * LOOKUPS
    assert finding.level == "ok"
    assert finding.data["lookups"] == LOOKUPS
    assert f"in {LOOKUPS} lookups" in finding.text


def test_an_ipv6_address_is_looked_up_unchanged() -> None:
    asked: list[str] = []

    check("2001:db8::7", asked.append)

    assert set(asked) == {"2001:db8::7"}


def test_a_slow_answer_is_a_warning_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    count = iter(range(LOOKUPS))
    now = [0.0]
    # A clock of its own: on a busy machine, the first two answers may seem to be slow, too.
    monkeypatch.setattr(name_server, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def third_is_slow(_address: str) -> None:
        if next(count) == 2:
            now[0] += 1.5 * SLOW

    (finding,) = check("192.0.2.7", third_is_slow, limit=60).findings

    assert finding.level == "warning"
    assert finding.data["lookups"] == 3
    assert finding.data["longest"] == 1.5 * SLOW
    for words in ("lookup 3", "::ffff:192.0.2.7 worker-host", "/etc/hosts", "RES_OPTIONS"):
        assert words in finding.text


def test_a_name_server_that_hangs_is_a_warning() -> None:
    answer = threading.Event()

    (finding,) = check("192.0.2.7", lambda _: answer.wait(), limit=0.2).findings
    answer.set()

    assert finding.level == "warning"
    assert re.search(r"took more than \d+\.\d s", finding.text)
    assert finding.data["longest"] < LIMIT


def test_the_machines_own_name_server_is_asked_by_default() -> None:
    (finding,) = check("127.0.0.1").findings

    assert finding.data["address"] == "::ffff:127.0.0.1"
    assert finding.data["lookups"] >= 1
