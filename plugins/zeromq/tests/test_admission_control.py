"""AdmissionControl admits keys that are learned in time or found by a lookup, and refuses others."""

from __future__ import annotations

import threading

import pytest

from rpc_backends_agents.engine.admission_control import AdmissionControl

KEY, OTHER = b"a" * 40, b"b" * 40
SOON = 5.0


def ask_on_thread(
    control: AdmissionControl, key: bytes
) -> tuple[threading.Thread, list[int | None]]:
    """Ask whose key this is on another thread, as the transport does."""
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(control.whose(key)))
    thread.start()
    return thread, answers


def test_a_key_belongs_to_the_peer_learned_with_it() -> None:
    control = AdmissionControl("ZEROMQ", expected=0, grace_period=SOON)
    control.learn(3, KEY)

    assert control.whose(KEY) == 3
    assert control.whose(OTHER) is None


def test_an_early_peer_waits_until_it_is_learned() -> None:
    control = AdmissionControl("ZEROMQ", expected=3, grace_period=SOON)
    control.learn(1, OTHER)
    thread, answers = ask_on_thread(control, KEY)
    later_thread, later_answers = ask_on_thread(control, b"c" * 40)
    control.learn(3, b"c" * 40)
    later_thread.join(SOON)
    assert later_answers == [3]
    assert answers == []

    control.learn(2, KEY)
    thread.join(SOON)

    assert answers == [2]


def test_waiting_ends_when_all_peers_are_learned() -> None:
    control = AdmissionControl("ZEROMQ", expected=1, grace_period=60)
    thread, answers = ask_on_thread(control, KEY)

    control.learn(1, OTHER)
    thread.join(SOON)

    assert answers == [None]
    assert control.whose(b"c" * 40) is None


def test_an_unknown_key_is_refused_after_the_grace_period() -> None:
    assert AdmissionControl("ZEROMQ", expected=1, grace_period=0.05).whose(KEY) is None


def test_stop_waiting_ends_the_wait() -> None:
    control = AdmissionControl("ZEROMQ", expected=1, grace_period=60)
    thread, answers = ask_on_thread(control, KEY)

    control.stop_waiting()
    thread.join(SOON)

    assert answers == [None]


def test_a_key_of_a_new_member_is_looked_up() -> None:
    control = AdmissionControl("ZEROMQ", expected=0, grace_period=SOON)
    seen: list[bytes] = []

    def look(key: bytes) -> None:
        seen.append(key)
        control.learn(7, KEY)

    control.look = look

    assert control.whose(KEY) == 7
    assert control.whose(KEY) == 7
    assert control.whose(OTHER) is None
    assert seen == [KEY, OTHER]


def test_one_lookup_answers_all_earlier_questions() -> None:
    control = AdmissionControl("ZEROMQ", expected=0, grace_period=SOON)
    lookups: list[bytes] = []

    def look(key: bytes) -> None:
        lookups.append(key)
        control.learn(7, KEY)

    control.look = look

    answers = [control.whose(b"%040d" % stranger, waited=SOON) for stranger in range(200)]

    assert answers == [None] * 200
    assert control.whose(KEY, waited=SOON) == 7
    assert len(lookups) == 1


def test_a_failed_lookup_is_logged_and_admits_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    control = AdmissionControl("ZEROMQ", expected=0, grace_period=SOON)

    def look(key: bytes) -> None:
        raise OSError("the store is gone")

    control.look = look

    assert control.whose(KEY) is None
    assert "cannot look for new workers" in caplog.text
    assert "the store is gone" in caplog.text


def test_keys_of_departed_or_rekeyed_peers_are_refused() -> None:
    control = AdmissionControl("ZEROMQ", expected=2, grace_period=0.05)
    control.learn(1, KEY)
    control.learn(2, OTHER)

    control.learn(1, b"c" * 40)
    control.forget(2)

    assert control.whose(KEY) is None
    assert control.whose(OTHER) is None
    assert control.whose(b"c" * 40) == 1


def test_peers_without_keys_count_as_learned() -> None:
    control = AdmissionControl("ZEROMQ", expected=1, grace_period=60)
    control.learn(1)

    assert control.whose(KEY) is None
