"""Whose key it is: known, learned in time, found by looking, or nobody's."""

from __future__ import annotations

import threading
import time

import pytest

from rpc_backend_zeromq.doorkeeper import Doorkeeper

KEY, OTHER = b"a" * 40, b"b" * 40
SOON = 5.0


def asked(doorkeeper: Doorkeeper, key: bytes) -> tuple[threading.Thread, list[int | None]]:
    """Ask on another thread, as the transport does."""
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(doorkeeper.whose(key)))
    thread.start()
    return thread, answers


def test_a_key_is_the_peer_s_that_was_learned_with_it() -> None:
    doorkeeper = Doorkeeper(expected=0, patience=SOON)
    doorkeeper.learn(3, KEY)

    assert doorkeeper.whose(KEY) == 3
    assert doorkeeper.whose(OTHER) is None


def test_a_peer_that_is_quicker_waits_until_it_is_learned() -> None:
    doorkeeper = Doorkeeper(expected=2, patience=SOON)
    doorkeeper.learn(1, OTHER)
    thread, answers = asked(doorkeeper, KEY)
    time.sleep(0.05)
    assert answers == []

    doorkeeper.learn(2, KEY)
    thread.join(SOON)

    assert answers == [2]


def test_when_all_are_learned_nobody_waits() -> None:
    doorkeeper = Doorkeeper(expected=1, patience=60)
    thread, answers = asked(doorkeeper, KEY)

    doorkeeper.learn(1, OTHER)
    thread.join(SOON)

    assert answers == [None]
    assert doorkeeper.whose(b"c" * 40) is None


def test_patience_ends() -> None:
    assert Doorkeeper(expected=1, patience=0.05).whose(KEY) is None


def test_waiting_ends_when_no_more_peers_will_be_learned() -> None:
    doorkeeper = Doorkeeper(expected=1, patience=60)
    thread, answers = asked(doorkeeper, KEY)

    doorkeeper.stop_waiting()
    thread.join(SOON)

    assert answers == [None]


def test_one_who_has_joined_is_found_by_looking() -> None:
    doorkeeper = Doorkeeper(expected=0, patience=SOON)
    seen: list[bytes] = []

    def look(key: bytes) -> None:
        seen.append(key)
        doorkeeper.learn(7, KEY)

    doorkeeper.look = look

    assert doorkeeper.whose(KEY) == 7
    assert doorkeeper.whose(KEY) == 7
    assert doorkeeper.whose(OTHER) is None
    assert seen == [KEY, OTHER]


def test_one_look_answers_all_keys_that_were_asked_before_it() -> None:
    doorkeeper = Doorkeeper(expected=0, patience=SOON)
    looks: list[bytes] = []

    def look(key: bytes) -> None:
        looks.append(key)
        doorkeeper.learn(7, KEY)

    doorkeeper.look = look

    answers = [doorkeeper.whose(b"%040d" % stranger, waited=SOON) for stranger in range(200)]

    assert answers == [None] * 200
    assert doorkeeper.whose(KEY, waited=SOON) == 7
    assert len(looks) == 1


def test_a_look_that_fails_is_in_the_log_and_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    doorkeeper = Doorkeeper(expected=0, patience=SOON)

    def look(key: bytes) -> None:
        raise OSError("the store is gone")

    doorkeeper.look = look

    assert doorkeeper.whose(KEY) is None
    assert "cannot look for new workers" in caplog.text
    assert "the store is gone" in caplog.text


def test_a_key_of_one_that_has_left_or_has_another_now_is_nobody_s() -> None:
    doorkeeper = Doorkeeper(expected=2, patience=0.05)
    doorkeeper.learn(1, KEY)
    doorkeeper.learn(2, OTHER)

    doorkeeper.learn(1, b"c" * 40)
    doorkeeper.forget(2)

    assert doorkeeper.whose(KEY) is None
    assert doorkeeper.whose(OTHER) is None
    assert doorkeeper.whose(b"c" * 40) == 1


def test_without_keys_it_knows_who_was_learned_and_waits_for_none() -> None:
    doorkeeper = Doorkeeper(expected=1, patience=60)
    doorkeeper.learn(1)

    assert doorkeeper.whose(KEY) is None
