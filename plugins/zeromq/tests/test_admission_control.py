"""AdmissionControl finds keys that are known, learned in time or looked up, and refuses others."""

from __future__ import annotations

import threading
import time

import pytest

from rpc_backend_zeromq.admission_control import AdmissionControl

KEY, OTHER = b"a" * 40, b"b" * 40
SOON = 5.0


def asked(
    admission_control: AdmissionControl, key: bytes
) -> tuple[threading.Thread, list[int | None]]:
    """Ask on another thread, as the transport does."""
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(admission_control.whose(key)))
    thread.start()
    return thread, answers


def test_a_key_is_the_peer_s_that_was_learned_with_it() -> None:
    admission_control = AdmissionControl(expected=0, grace_period=SOON)
    admission_control.learn(3, KEY)

    assert admission_control.whose(KEY) == 3
    assert admission_control.whose(OTHER) is None


def test_a_peer_that_is_quicker_waits_until_it_is_learned() -> None:
    admission_control = AdmissionControl(expected=2, grace_period=SOON)
    admission_control.learn(1, OTHER)
    thread, answers = asked(admission_control, KEY)
    time.sleep(0.05)
    assert answers == []

    admission_control.learn(2, KEY)
    thread.join(SOON)

    assert answers == [2]


def test_when_all_are_learned_nobody_waits() -> None:
    admission_control = AdmissionControl(expected=1, grace_period=60)
    thread, answers = asked(admission_control, KEY)

    admission_control.learn(1, OTHER)
    thread.join(SOON)

    assert answers == [None]
    assert admission_control.whose(b"c" * 40) is None


def test_grace_period_ends() -> None:
    assert AdmissionControl(expected=1, grace_period=0.05).whose(KEY) is None


def test_waiting_ends_when_no_more_peers_will_be_learned() -> None:
    admission_control = AdmissionControl(expected=1, grace_period=60)
    thread, answers = asked(admission_control, KEY)

    admission_control.stop_waiting()
    thread.join(SOON)

    assert answers == [None]


def test_one_who_has_joined_is_found_by_looking() -> None:
    admission_control = AdmissionControl(expected=0, grace_period=SOON)
    seen: list[bytes] = []

    def look(key: bytes) -> None:
        seen.append(key)
        admission_control.learn(7, KEY)

    admission_control.look = look

    assert admission_control.whose(KEY) == 7
    assert admission_control.whose(KEY) == 7
    assert admission_control.whose(OTHER) is None
    assert seen == [KEY, OTHER]


def test_one_look_answers_all_keys_that_were_asked_before_it() -> None:
    admission_control = AdmissionControl(expected=0, grace_period=SOON)
    looks: list[bytes] = []

    def look(key: bytes) -> None:
        looks.append(key)
        admission_control.learn(7, KEY)

    admission_control.look = look

    answers = [admission_control.whose(b"%040d" % stranger, waited=SOON) for stranger in range(200)]

    assert answers == [None] * 200
    assert admission_control.whose(KEY, waited=SOON) == 7
    assert len(looks) == 1


def test_a_look_that_fails_is_in_the_log_and_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admission_control = AdmissionControl(expected=0, grace_period=SOON)

    def look(key: bytes) -> None:
        raise OSError("the store is gone")

    admission_control.look = look

    assert admission_control.whose(KEY) is None
    assert "cannot look for new workers" in caplog.text
    assert "the store is gone" in caplog.text


def test_a_key_of_one_that_has_left_or_has_another_now_is_nobody_s() -> None:
    admission_control = AdmissionControl(expected=2, grace_period=0.05)
    admission_control.learn(1, KEY)
    admission_control.learn(2, OTHER)

    admission_control.learn(1, b"c" * 40)
    admission_control.forget(2)

    assert admission_control.whose(KEY) is None
    assert admission_control.whose(OTHER) is None
    assert admission_control.whose(b"c" * 40) == 1


def test_without_keys_it_knows_who_was_learned_and_waits_for_none() -> None:
    admission_control = AdmissionControl(expected=1, grace_period=60)
    admission_control.learn(1)

    assert admission_control.whose(KEY) is None
