"""With ``fips``, connections use OpenSSL's FIPS provider; without a provider there is a clear refusal.

``OPENSSL_MODULES`` and ``OPENSSL_CONF`` name a provider that is not part of the system, as users do it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from native_workers import Child, Worker

MakeWorker = Callable[..., Worker]


@pytest.mark.usefixtures("provider")
def test_workers_with_fips_exchange_messages(make: MakeWorker) -> None:
    worker0, worker1 = (make(n, True, fips=True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    worker0.learn(worker1)
    worker1.learn(worker0)
    worker0.send(1, b"x" * 1_000_000)
    assert worker1.message() == (0, [b"x" * 1_000_000])
    worker1.send(0, b"reply", reply=True)
    assert worker0.message() == (1, [b"reply"])


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("caller_has_it", [False, True])
def test_fips_on_one_side_is_refused_with_the_reason(make: MakeWorker, caller_has_it: bool) -> None:
    caller = make(0, True, fips=caller_has_it).listen("tcp://127.0.0.1:*")
    called = make(1, True, fips=not caller_has_it).listen("tcp://127.0.0.1:*")
    caller.learn(called)
    caller.try_to_send(1, b"x")
    assert "set fips alike for all workers" in caller.lost()
    called.log_line("set fips alike for all workers")


@pytest.mark.usefixtures("provider")
def test_an_unknown_key_with_fips_is_refused(make: MakeWorker) -> None:
    worker0, stranger = (make(n, True, fips=True).listen("tcp://127.0.0.1:*") for n in (0, 1))
    stranger.learn(worker0)
    stranger.try_to_send(0, b"let me in")
    assert "the peer does not know this worker's key" in stranger.lost()
    assert worker0.transport.receive(0) is None


def test_fips_without_a_provider_is_refused_with_a_remedy(
    start: Callable[..., Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSSL_MODULES", str(tmp_path))
    child = start(
        """
        from native_workers import TransportError, make_keys
        try:
            make_keys(fips=True)
        except TransportError as error:
            say(str(error))
        """
    )
    text = child.hear()
    assert "cannot start its FIPS provider" in text
    assert str(tmp_path) in text
    assert "Install a provider" in text
    assert "OPENSSL_CONF" in text
