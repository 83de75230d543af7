"""With certificates, a worker's name belongs to the owner of its certificate, and to no other worker."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backend_zeromq import _native, identity
from rpc_backend_zeromq._native import Certificates, Transport, TransportError, make_keys
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.publication import Publication
from rpc_backend_zeromq.settings import settings_of
from rpc_backends_agents.engine import (
    certificates,
    secret,
)
from rpc_backends_agents.engine.identities import Identities
from rpc_backends_core.spi import SettingError
from support import steps
from support.certificates import files, issue
from support.certified_groups import (
    SOON,
    call_error,
    check_another_authority,
    check_corrected_rights,
    check_expired_at_start,
    check_expiry_and_renewal,
    check_revocation,
    check_revoked_joiner,
    group,
    identity_of,
    join_as,
    leave_now,
    make_folder,
    record,
    start_error,
)
from support.workers import WorkerContext, Workers
from support.zeromq import NAME, eventually, exercise, logged_line, metric

pytestmark = pytest.mark.slow

# --- certificates ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an authority, and certificates for worker0 to worker3."""
    return make_folder(tmp_path)


@pytest.fixture(params=[False, True], ids=["tcp", "unix"])
def unix_sockets(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# --- members -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_workers_with_their_certificates_form_a_group(
    tmp_path: Path, folder: Path, unix_sockets: bool, dynamic: bool
) -> None:
    more = {"dynamic": True} if dynamic else {}
    with group(tmp_path, folder, backend=NAME, unix_sockets=unix_sockets, **more) as workers:
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{peer}")
            assert workers[me].call(identity_of, f"worker{peer}") == f"worker{peer}"
        assert workers[0].call(metric, "transport.zeromq.refused") == 0
        workers.run(steps.leave)


def test_a_spiffe_id_names_a_worker(tmp_path: Path, folder: Path) -> None:
    for name in ("worker0", "worker1"):
        issue(folder, name, uri=f"spiffe://example.org/ml/{name}")

    with group(tmp_path, folder, backend=NAME) as workers:
        workers[0].call(exercise, "worker1")
        assert workers[0].call(identity_of, "worker1") == "spiffe://example.org/ml/worker1"
        workers.run(steps.leave)


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("proof", ["secret", "certificates"])
def test_workers_with_fips_form_a_group(
    tmp_path: Path, folder: Path, secret_file: Path, proof: str
) -> None:
    own = files(folder) if proof == "certificates" else {"secret_file": str(secret_file)}
    options = {"backend": NAME, "fips": True, "unix_sockets": False, **own}
    with Workers(2) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", **options)
        workers.run(exercise_other)
        proved = workers[0].call(identity_of, "worker1")
        assert proved == ("worker1" if proof == "certificates" else None)
        workers.run(steps.leave)


@pytest.mark.usefixtures("provider")
def test_a_member_with_certificates_and_without_fips_is_refused(
    tmp_path: Path, folder: Path
) -> None:
    options = {"backend": NAME, **files(folder), "unix_sockets": False}
    with Workers(2) as workers:
        workers.run(steps.join, f"file://{tmp_path}/store", **options, only={0: {"fips": True}})

        for me, other in ((0, "worker1"), (1, "worker0")):
            assert "set fips alike for all workers" in workers[me].call(call_error, other)
        workers.run(leave_now)


# --- names -------------------------------------------------------------------------------------------


def test_a_worker_refuses_to_start_with_a_certificate_for_another_name(
    tmp_path: Path, folder: Path
) -> None:
    texts = start_error(tmp_path, NAME, files(folder), files(folder, "worker3"))

    assert all("a worker cannot have the name 'worker1'" in text for text in texts)
    assert all("whose name is 'worker3'" in text for text in texts)


def test_a_member_with_another_name_than_its_certificates_does_not_get_in(
    tmp_path: Path, folder: Path
) -> None:
    with group(tmp_path, folder, backend=NAME, size=3, dynamic=True, unix_sockets=False) as workers:
        url = f"file://{tmp_path}/store"
        error = workers[2].call(
            join_as, url, "boss", backend=NAME, **files(folder, "worker2"), unix_sockets=False
        )

        assert "is lost" in error
        assert "certificate is that of" not in error  # the reason is not for strangers
        logged_line(workers[0], "RPC worker 'boss' is not let in", "that of worker2")
        logged_line(workers[0], "refused a connection: 127.0.0.1: its proof does not belong")
        workers[0].call(exercise, "worker1")


def test_a_connection_in_the_name_of_another_worker_is_refused(
    tmp_path: Path, folder: Path, unix_sockets: bool
) -> None:
    """The intruder has a certificate of the same authority, and knows all that the store shows."""
    with group(tmp_path, folder, backend=NAME, unix_sockets=unix_sockets) as workers:
        target, victim = (Publication.load(worker.call(record)) for worker in workers)
        with raw_transport(folder, "worker2", target, victim) as native:
            reason = refusal(native)
        assert "this worker does not accept the certificate" in reason
        logged_line(
            workers[0], "a process that claims to be worker 1 has the certificate of worker2"
        )
        workers.run(exercise_other)
        workers.run(steps.leave)


def exercise_other(me: WorkerContext) -> None:
    exercise(me, f"worker{1 - me.index}")


@contextlib.contextmanager
def raw_transport(
    folder: Path, owner: str, target: Publication, claimed: Publication, endpoint: str | None = None
) -> Iterator[Transport]:
    """Return a transport with the certificate of one worker, which claims to be another one."""
    made = Certificates(
        *(
            (folder / name).read_bytes()
            for name in (f"{owner}.pem", f"{owner}.key", "authority.pem")
        )
    )
    native = Transport(
        public_key=None,
        secret_key=None,
        certificates=made,
        handshake_timeout=10,
        wants_proofs=True,
        **ZeroMQRpcBackendOptions(heartbeat_timeout=10).native(),
    )
    try:
        native.start(claimed.worker_id)
        if endpoint is None:
            endpoint = target.tcp[0] if target.unix is None else f"ipc://{target.unix.path}"
        assert target.public_key is not None
        native.learn(
            target.worker_id,
            endpoint,
            target.public_key.encode(),
            identity.unix_proofs(claimed, target, None),
        )
        yield native
    finally:
        native.close(0)


def refusal(native: Transport) -> str:
    """Send a message; return why the connection for it is refused."""
    try:
        native.send(0, [b"x"], False)
    except TransportError as error:  # the refusal has come before the message was queued
        return str(error)
    kind, _, _, reason = native.receive(SOON) or ("", 0, [], "")
    assert kind == "lost"
    return reason


def test_a_member_of_its_own_name_can_connect_like_this(tmp_path: Path, folder: Path) -> None:
    """Only the certificate keeps the connection of the test above out."""
    with group(tmp_path, folder, backend=NAME) as workers:
        target, mine = (Publication.load(worker.call(record)) for worker in workers)
        with raw_transport(folder, "worker1", target, mine) as native:
            native.send(0, [b"x"], False)
            eventually(  # it was read, and is no valid message
                lambda: workers[0].call(metric, "transport.zeromq.rejected"), lambda: "a message"
            )


# --- what is on the way ------------------------------------------------------------------------------


@contextlib.contextmanager
def relay(folder: Path, owner: str, to: str) -> Iterator[str]:
    """Yield the endpoint of a relay that ends TLS with the certificate of `owner`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / f"{owner}.pem", folder / f"{owner}.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(folder / f"{owner}.pem", folder / f"{owner}.key")
    host, port = to.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with contextlib.suppress(OSError):
                near, _ = listening.accept()
                with (
                    server.wrap_socket(near, server_side=True) as here,
                    socket.create_connection((host, int(port))) as far,
                    client.wrap_socket(far) as there,
                ):
                    while True:
                        ready, _, _ = select.select([here, there], [], [], SOON)
                        for sender in ready:
                            data = sender.recv(65536)
                            if not data:
                                return
                            (there if sender is here else here).sendall(data)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    thread.join(SOON)


def test_a_man_in_the_middle_with_another_certificate_sees_nothing(
    tmp_path: Path, folder: Path
) -> None:
    with group(tmp_path, folder, backend=NAME, unix_sockets=False) as workers:
        target, mine = (Publication.load(worker.call(record)) for worker in workers)
        with (
            relay(folder, "worker2", target.tcp[0]) as endpoint,
            raw_transport(folder, "worker1", target, mine, endpoint) as native,
        ):
            reason = refusal(native)

        assert "the process there has the certificate of worker2" in reason
        workers.run(steps.leave)


@pytest.mark.parametrize(
    ("version", "why"), [("TLSv1_2", "unsupported protocol"), ("TLSv1_3", "certificate")]
)
def test_clients_of_tls_1_2_or_without_a_certificate_are_refused(
    tmp_path: Path, folder: Path, version: str, why: str
) -> None:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion[version]
    with group(tmp_path, folder, backend=NAME, unix_sockets=False) as workers:
        host, port = (
            Publication.load(workers[0].call(record)).tcp[0].removeprefix("tcp://").rsplit(":", 1)
        )
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            socket.create_connection((host, int(port)), SOON) as plain,
            client.wrap_socket(plain) as stranger,
        ):
            stranger.sendall(b"x" * 100)
            if stranger.recv(1) == b"":
                raise ConnectionResetError
        logged_line(workers[0], "refused a connection", why)
        workers.run(steps.leave)


# --- other proofs ------------------------------------------------------------------------------------


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, folder: Path) -> None:
    check_another_authority(tmp_path, folder, NAME)


@pytest.mark.parametrize("has_secret", [True, False], ids=["secret", "nothing"])
def test_certificates_on_one_side_are_reported_on_both(
    tmp_path: Path, folder: Path, has_secret: bool
) -> None:
    credentials = {"secret": secret.generate()} if has_secret else {}

    here, there = start_error(tmp_path, NAME, files(folder), credentials)

    lacks = "a secret instead" if has_secret else "none"
    assert "worker 'worker0' has a certificate" in here
    assert f"worker 'worker1' (rank 1) has {lacks}" in here
    assert "worker 'worker0' (rank 0) has a certificate, and worker 'worker1' has" in there
    assert "Give all workers certificates" in here
    assert "Give all workers certificates" in there


# --- time --------------------------------------------------------------------------------------------


def test_a_worker_refuses_to_start_with_an_expired_certificate(
    tmp_path: Path, folder: Path
) -> None:
    check_expired_at_start(tmp_path, folder, NAME)


def test_an_expired_certificate_is_refused_until_it_is_renewed(
    tmp_path: Path, folder: Path, unix_sockets: bool
) -> None:
    check_expiry_and_renewal(tmp_path, folder, backend=NAME, unix_sockets=unix_sockets)


def test_files_of_another_identity_or_half_written_change_nothing(
    tmp_path: Path, folder: Path
) -> None:
    with group(tmp_path, folder, backend=NAME) as workers:
        for name in (".pem", ".key"):
            content = (folder / f"worker3{name}").read_bytes()
            (folder / f"worker1{name}").write_bytes(content)
        logged_line(workers[1], "'worker1' keeps its certificate", "is now that of worker3")
        (folder / "worker1.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\n")
        logged_line(workers[1], "'worker1' keeps its certificate", "has an invalid certificate")
        workers[1].call(exercise, "worker0")
        workers.run(steps.leave)


def test_a_key_whose_access_rights_were_corrected_is_read_again(
    tmp_path: Path, folder: Path
) -> None:
    check_corrected_rights(tmp_path, folder, NAME)


# --- FIPS --------------------------------------------------------------------------------------------


def test_certificates_with_fips_use_the_provider(tmp_path: Path, folder: Path) -> None:
    try:
        make_keys(fips=True)
    except TransportError:
        pytest.skip("OpenSSL's FIPS provider is not installed here")
    with group(tmp_path, folder, backend=NAME, unix_sockets=False, fips=True) as workers:
        workers[0].call(exercise, "worker1")
        workers.run(steps.leave)


def test_certificates_with_fips_but_no_provider_are_refused_with_a_remedy(
    tmp_path: Path, folder: Path
) -> None:
    with Workers(2, env={"OPENSSL_MODULES": str(tmp_path)}) as workers:
        url = f"file://{tmp_path}/store"
        failed = workers.errors(steps.join, url, backend="ZEROMQ", fips=True, **files(folder))

        for failure in failed:
            assert "cannot start its FIPS provider" in failure.text
            assert "Install a provider" in failure.text


# --- revocation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("revoked", ["worker1", "63"], ids=["name", "serial"])
def test_a_revoked_worker_is_cut_off_at_once(
    tmp_path: Path, folder: Path, unix_sockets: bool, revoked: str
) -> None:
    check_revocation(tmp_path, folder, revoked, backend=NAME, unix_sockets=unix_sockets)


def test_a_revoked_worker_does_not_join(tmp_path: Path, folder: Path) -> None:
    check_revoked_joiner(tmp_path, folder, NAME)


# --- settings ----------------------------------------------------------------------------------------


def error_of(options: dict[str, Any]) -> str:
    with pytest.raises(SettingError) as caught:
        settings_of(ZeroMQRpcBackendOptions(**options), {})
    return str(caught.value)


def test_conflicting_settings_are_errors(folder: Path) -> None:
    given = files(folder)

    assert "in one way" in error_of({**given, "secret": secret.generate()})
    assert "encryption is off" in error_of({**given, "encryption": False})
    assert "certificate_key" in error_of({**given, "certificate_key": None})
    assert settings_of(ZeroMQRpcBackendOptions(**given), {}).policy.lack is None


def test_a_key_that_others_can_read_is_refused(folder: Path) -> None:
    os.chmod(folder / "worker1.key", 0o640)  # noqa: PTH101

    with pytest.raises(SettingError, match=r"other users can access the key.*chmod 600"):
        certificates.Files(*files(folder, "worker1").values()).read(_native)


@pytest.mark.parametrize(
    ("identity_", "name", "may"),
    [
        ("worker1", "worker1", True),
        ("worker1.example.org", "worker1", False),
        ("spiffe://x/ml/worker1", "worker1", True),
        ("spiffe://x/ml/worker1/", "worker1", False),
        ("spiffe://x", "x", True),
        ("worker1", "worker2", False),
    ],
)
def test_without_rules_the_name_is_the_last_part(identity_: str, name: str, may: bool) -> None:
    assert (Identities().refusal(identity_, "1", name) == "") is may


def test_rules_tie_names_to_identities() -> None:
    rules = Identities(
        names={"spiffe://x/trainer": ("trainer*",), "spiffe://x/*": ("ps*",)},
        revoked=frozenset({"7"}),
    )

    assert rules.refusal("spiffe://x/trainer", "1", "trainer3") == ""
    assert rules.refusal("spiffe://x/other", "1", "ps0") == ""
    assert "only spiffe://x/trainer have the name" in rules.refusal("spiffe://x/o", "1", "trainer3")
    assert "no identity" in rules.refusal("spiffe://x/trainer", "1", "boss")
    assert "revoked" in rules.refusal("spiffe://x/trainer", "7", "trainer3")
