"""No key of a connection is left in the process's memory or in a file, and no configuration counts."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from native_workers import TIME_LIMIT, Child, Intruder, Worker, eventually, greeting, message

from rpc_backend_zeromq._native import make_keys

WORKER = """
(peer,) = arguments
worker = Worker(0, encrypted=True).listen("tcp://127.0.0.1:*")
worker.transport.learn(1, "tcp://127.0.0.1:1", peer.encode())
say([worker.endpoint, worker.key.decode()])
worker.next("message")
say("has read a message")
# It sees the end of the connection.
threading.Thread(target=worker.transport.receive, daemon=True).start()
hear()
"""

#: What OpenSSL of the system may be told: nothing of it fits TLS 1.3 with X25519.
CONFIGURATION = """
openssl_conf = all
[all]
ssl_conf = ssl
alg_section = algorithms
[ssl]
system_default = tls
[tls]
MaxProtocol = TLSv1.2
CipherString = DEFAULT@SECLEVEL=5
Groups = secp521r1
SignatureAlgorithms = RSA-PSS+SHA512
[algorithms]
default_properties = fips=yes
"""


def secrets_of(key_log: Path) -> list[bytes]:
    """Return the traffic secrets of the last connection in a key log, which the keys are made of."""
    lines = [
        line.split() for line in key_log.read_text().splitlines() if "TRAFFIC_SECRET_0" in line
    ]
    return [bytes.fromhex(secret) for label, _, secret in lines if "HANDSHAKE" not in label]


def key_of(secret: bytes, size: int) -> bytes:
    """Return the key that is made of a traffic secret (RFC 8446, section 7.3)."""
    return hmac.digest(secret, bytes([0, size, 9]) + b"tls13 key\0\1", hashlib.sha256)[:size]


def memory_of(pid: int) -> bytes:
    """Return the writable memory of a process."""
    data = []
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights = line.split()[:2]
            begin, end = (int(number, 16) for number in span.split("-"))
            if rights.startswith("rw"):
                try:
                    memory.seek(begin)
                    data.append(memory.read(end - begin))
                except OSError:  # memory of a device
                    continue
    return b"".join(data)


def test_a_closed_connection_leaves_no_key_in_memory(
    make: Callable[..., Worker], start: Callable[..., Child], tmp_path: Path
) -> None:
    """Who can read the worker's memory later cannot open what was recorded."""
    peer = make(1, True)
    assert peer.key is not None
    child = start(WORKER, peer.key.decode())
    target = make(0, True)
    target.endpoint, key = child.hear()
    target.key = key.encode()
    log = tmp_path / "keys.log"
    intruder = Intruder(target, greeting(1), peer, key_log=log).admitted()
    intruder.send(message(5), b"hello")
    assert child.hear() == "has read a message"
    secrets = secrets_of(log)
    assert len(secrets) == 2
    assert any(secret in memory_of(child.process.pid) for secret in secrets), "the search works"
    intruder.socket.close()

    traces = [
        trace
        for secret in secrets
        # AES-128-GCM has keys of 16 bytes, ChaCha20-Poly1305 of 32.
        for trace in (secret, secret.hex().encode(), key_of(secret, 16), key_of(secret, 32))
    ]

    def is_clean() -> bool:
        memory = memory_of(child.process.pid)
        return not any(trace in memory for trace in traces)

    eventually(is_clean, "no key of the closed connection is in memory")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set what OpenSSL of the system would read; return the key log that it would write."""
    configuration, log = tmp_path / "openssl.cnf", tmp_path / "keys.log"
    configuration.write_text(CONFIGURATION)
    monkeypatch.setenv("OPENSSL_CONF", str(configuration))
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    return log


def test_no_configuration_of_openssl_changes_a_connection(
    start: Callable[..., Child], environment: Path
) -> None:
    """Neither the system's file nor a variable for key logs."""
    child = start(
        """
        worker0, worker1 = (Worker(n, encrypted=True).listen("tcp://127.0.0.1:*") for n in (0, 1))
        worker0.learn(worker1), worker1.learn(worker0)
        worker0.send(1, b"x")
        say(worker1.message()[0])
        """
    )
    assert child.hear() == 0
    assert child.process.wait(TIME_LIMIT) == 0
    assert not environment.exists()


def test_forked_processes_make_different_keys() -> None:
    """Both continue with the parent's memory, and so with its source of random numbers."""
    made = [make_keys()]
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, make_keys()[0])
            os._exit(0)
        os.close(writing)
        made.append((os.read(reading, 100), b""))
        os.close(reading)
        assert os.waitpid(child, 0)[1] == 0
    made.append(make_keys())
    assert len({public for public, _ in made}) == 4
