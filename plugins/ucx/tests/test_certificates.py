"""With certificates, a worker's name on UCX belongs to the owner of its certificate."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from rpc_backend_ucx import processes, publication
from rpc_backend_ucx.library import native
from rpc_backend_ucx.options import UCXRpcBackendOptions
from rpc_backend_ucx.publication import Publication
from rpc_backend_ucx.settings import settings_of
from rpc_backends_agents.engine import certificates
from rpc_backends_agents.engine import secret as secrets
from rpc_backends_core.spi import SettingError
from support import steps
from support.certificates import files, issue
from support.certified_groups import (
    SOON,
    check_another_authority,
    check_corrected_rights,
    check_expired_at_start,
    check_expiry_and_renewal,
    check_revocation,
    check_revoked_joiner,
    group,
    identity_of,
    join,
    join_as,
    leave_now,
    make_folder,
    record,
    start_error,
)
from support.ucx_transports import listeners, siphash_tag
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, exercise, logged_line, metric

NAME = "UCX"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_memory_files")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with an authority, and certificates for worker0 to worker3."""
    return make_folder(tmp_path)


@pytest.fixture(params=["shm", "tcp"])
def over(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options for shared memory, and for TCP."""
    return {"trusted_network": True, "transports": ["tcp"]} if request.param == "tcp" else {}


TCP: dict[str, Any] = {"trusted_network": True, "transports": ["tcp"]}


def listens_on(me: WorkerContext) -> list[tuple[str, int]]:
    return listeners(os.getpid())


# --- members -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_workers_with_their_certificates_form_a_group(
    tmp_path: Path, folder: Path, over: dict[str, Any], dynamic: bool
) -> None:
    more = {"dynamic": True, **over} if dynamic else over
    with group(tmp_path, folder, backend=NAME, **more) as workers:
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{peer}")
            assert workers[me].call(identity_of, f"worker{peer}") == f"worker{peer}"
        assert workers[0].call(metric, "transport.ucx.refused") == 0
        workers.run(steps.leave)


@pytest.mark.parametrize("kind", ["RSA", "a long chain"])
def test_long_certificates_pass_over_tcp(tmp_path: Path, folder: Path, kind: str) -> None:
    """Their proofs are longer than what the kernel takes at once."""
    more = {"bits": 4096} if kind == "RSA" else {"extra": 11_000}
    for name in ("worker0", "worker1"):
        issue(folder, name, **more)
    with group(tmp_path, folder, backend=NAME, **TCP) as workers:
        workers[0].call(exercise, "worker1")
        workers.run(steps.leave)


# --- names -------------------------------------------------------------------------------------------


def test_a_worker_refuses_to_start_with_a_certificate_for_another_name(
    tmp_path: Path, folder: Path
) -> None:
    texts = start_error(tmp_path, NAME, files(folder), files(folder, "worker3"))

    assert all("a worker cannot have the name 'worker1'" in text for text in texts)


def test_a_member_with_another_name_than_its_certificates_does_not_get_in(
    tmp_path: Path, folder: Path, over: dict[str, Any]
) -> None:
    with group(tmp_path, folder, backend=NAME, size=3, dynamic=True, **over) as workers:
        url = f"file://{tmp_path}/store"
        error = workers[2].call(
            join_as, url, "boss", backend=NAME, **files(folder, "worker2"), **over
        )

        assert "is lost" in error
        assert "certificate is that of" not in error  # the reason is not for strangers
        logged_line(workers[0], "RPC worker 'boss' is not let in", "that of worker2")
        workers[0].call(exercise, "worker1")


def test_a_connection_in_the_name_of_another_worker_is_refused(
    tmp_path: Path, folder: Path, over: dict[str, Any]
) -> None:
    """The intruder has a certificate of the same authority, and knows all that the store shows."""
    with group(tmp_path, folder, backend=NAME, **over) as workers:
        workers[0].call(exercise, "worker1")
        target, victim = (Publication.load(worker.call(record)) for worker in workers)
        with raw_transport(folder, "worker2", target, victim, over) as transport:
            claim = "a process that claims to be worker 1: it has the certificate of worker2"
            receive_until(transport, lambda: claim in workers[0].output)
        assert workers[0].call(metric, "transport.ucx.peers_lost") == 0
        workers[0].call(exercise, "worker1")
        workers.run(steps.leave)


def test_a_connection_like_this_with_the_right_certificate_is_accepted(
    tmp_path: Path, folder: Path, over: dict[str, Any]
) -> None:
    """Only the certificate keeps the connection of the test above out: this one ends the open link."""
    with group(tmp_path, folder, backend=NAME, **over) as workers:
        workers[0].call(exercise, "worker1")
        target, victim = (Publication.load(worker.call(record)) for worker in workers)
        with raw_transport(folder, "worker1", target, victim, over) as transport:
            receive_until(
                transport, lambda: workers[0].call(metric, "transport.ucx.peers_lost") > 0
            )
        workers.run(leave_now)


@contextlib.contextmanager
def raw_transport(
    folder: Path, owner: str, target: Publication, claimed: Publication, over: dict[str, Any]
) -> Iterator[Any]:
    """Return a transport with the certificate of one worker, which claims to be another one."""
    made = certificates.Files(*files(folder, owner).values()).read(native())
    settings = settings_of(UCXRpcBackendOptions(**over), {})
    transport = native().Transport(
        config=settings.config(watches_processes=processes.can_watch()),
        handshake_timeout=10,
        rendezvous=0,
        certificates=made,
        **settings.native,
    )
    try:
        transport.start(claimed.worker_id, publication.connection_key(target.group, None))
        # Each change of the identity makes the numbers of its links larger, beyond those of the worker.
        for identity in (*(str(number) for number in range(100)), target.name):
            transport.learn(
                target.worker_id,
                target.address_bytes,
                *publication.greetings(claimed, target, None),
                identity=identity,
                statements=publication.statements(claimed, target),
            )
        yield transport
    finally:
        transport.close(0)


def receive_until(transport: Any, condition: Callable[[], bool]) -> None:
    """Let a transport connect, which it does while it receives, until a condition holds."""

    def holds() -> bool:
        transport.receive(0.05)
        return condition()

    eventually(holds, lambda: "the connection, or its refusal")


# --- what strangers send -----------------------------------------------------------------------------

_NONE = struct.pack("<II32s", 0, 0, bytes(32))
_LONG = struct.pack("<II32s", 16385, 64, bytes(32)) + bytes(16449)
_NONSENSE = struct.pack("<II32s", 1000, 64, bytes(32)) + bytes(1064)


@pytest.mark.parametrize(
    ("shown", "why"),
    [(_NONE, "invalid or too long"), (_LONG, "invalid or too long"), (_NONSENSE, "are invalid")],
    ids=["nothing", "too much", "nonsense"],
)
def test_strangers_without_a_certificate_do_not_reach_ucx(
    tmp_path: Path, folder: Path, shown: bytes, why: str
) -> None:
    """They have read the store, so they know the key of the group."""
    with group(tmp_path, folder, backend=NAME, **TCP) as workers:
        target = Publication.load(workers[0].call(record))
        key = publication.connection_key(target.group, None)
        for number, port in enumerate(workers[0].call(listens_on), 1):
            with socket.create_connection(port, SOON) as stranger:
                stranger.sendall(tcp_proof(number, port, key) + shown)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        logged_line(workers[0], "refused a connection: a process connects from", why)
        workers[1].call(exercise, "worker0")
        workers.run(steps.leave)


def tcp_proof(number: int, receiver: tuple[str, int], key: bytes) -> bytes:
    """Return the first proof of a connection, which needs no certificate."""
    text = f"{receiver[0]} port {receiver[1]}"
    return (
        b"UCXTCP01"
        + struct.pack("<QQ", 4711, number)
        + siphash_tag("connect", 4711, number, text, key)
    )


def test_a_repeated_opening_is_refused(tmp_path: Path, folder: Path) -> None:
    """What a member has sent on TCP opens no second connection, here or at another worker."""
    with group(tmp_path, folder, backend=NAME, **TCP) as workers:
        target, mine = (Publication.load(worker.call(record)) for worker in workers)
        key = publication.connection_key(target.group, None)
        (port, *_) = workers[0].call(listens_on)
        (other_port, *_) = workers[1].call(listens_on)
        opening = signed_opening(folder, "worker1", 1, port, key)
        with socket.create_connection(port, SOON) as member:
            member.sendall(opening)
            assert len(member.recv(16, socket.MSG_WAITALL)) == 16
        for address in (port, other_port):
            with socket.create_connection(address, SOON) as again:
                again.sendall(opening)
                with contextlib.suppress(ConnectionResetError):
                    assert again.recv(1) == b""
        logged_line(workers[0], "its proof was used before")
        workers[0].call(exercise, mine.name)
        workers.run(steps.leave)


def signed_opening(
    folder: Path, owner: str, number: int, receiver: tuple[str, int], key: bytes
) -> bytes:
    """Return what the owner of a certificate sends when it connects."""
    made = certificates.Files(*files(folder, owner).values()).read(native())
    first = tcp_proof(number, receiver, key)
    statement = b"connect" + key + first + f"{receiver[0]} port {receiver[1]}".encode()
    unknown = bytes(32)
    signature = made.sign(
        b"rpc-backends ucx" + struct.pack("<Q", len(statement)) + statement + unknown + made.chain
    )
    head = struct.pack("<II32s", len(made.chain), len(signature), unknown)
    return first + head + made.chain + signature


def test_a_changed_byte_of_an_opening_is_refused(tmp_path: Path, folder: Path) -> None:
    with group(tmp_path, folder, backend=NAME, **TCP) as workers:
        target = Publication.load(workers[0].call(record))
        key = publication.connection_key(target.group, None)
        (port, *_) = workers[0].call(listens_on)
        opening = signed_opening(folder, "worker1", 1, port, key)
        fields = (0, 8, 16, 24, 40, 44, 48, 80, len(opening) - 40, len(opening) - 1)
        for at in fields:
            changed = bytearray(opening)
            changed[at] ^= 1
            with (
                socket.create_connection(port, SOON) as stranger,
                contextlib.suppress(ConnectionError),
            ):
                stranger.sendall(changed)
                with contextlib.suppress(OSError):  # the worker has ended the connection already
                    stranger.shutdown(socket.SHUT_WR)  # a longer size waits for more
                assert stranger.recv(1) == b"", at
        with socket.create_connection(port, SOON) as member:  # the proof itself is valid
            member.sendall(opening)
            assert len(member.recv(16, socket.MSG_WAITALL)) == 16
        workers.run(steps.leave)


def test_a_flood_of_openings_leaves_room_for_a_member(tmp_path: Path, folder: Path) -> None:
    with (
        contextlib.ExitStack() as stack,
        group(tmp_path, folder, backend=NAME, size=3, dynamic=True, **TCP) as workers,
    ):
        target = Publication.load(workers[0].call(record))
        key = publication.connection_key(target.group, None)
        (port, *_) = workers[0].call(listens_on)
        for number in range(600):
            stranger = stack.enter_context(socket.create_connection(port, SOON))
            stranger.sendall(tcp_proof(number, port, key) + _NONSENSE[:-1])
        workers[2].call(
            join, f"file://{tmp_path}/store", backend=NAME, dynamic=True, **files(folder), **TCP
        )
        workers[2].call(exercise, "worker0")
        workers.run(leave_now)


# --- roles -------------------------------------------------------------------------------------------

POLICY = """
version = 1

[roles]
trainers = ["worker0"]

[identities]
"spiffe://example.org/ml/trainer" = ["@trainers"]
"spiffe://example.org/ml/server" = ["worker1"]

[[rule]]
peers = ["@trainers"]
functions = ["textwrap:dedent"]
"""


def dedent_error(me: WorkerContext, to: str) -> str:
    """Call a function that the policy lists for trainers; return its error, or an empty text."""
    try:
        rpc.rpc_sync(to, textwrap.dedent, args=("text",), timeout=SOON)
    except RuntimeError as error:
        return str(error)
    return ""


def test_roles_of_a_policy_come_from_proved_identities(
    tmp_path: Path, folder: Path, over: dict[str, Any]
) -> None:
    pytest.importorskip("rpc_backends_guard", reason="a policy needs rpc-backends-guard")
    issue(folder, "worker0", uri="spiffe://example.org/ml/trainer")
    issue(folder, "worker1", uri="spiffe://example.org/ml/server")
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(join, f"file://{tmp_path}/store", backend=NAME, **files(folder), **over)

        assert workers[0].call(dedent_error, "worker1") == ""
        assert "does not list 'textwrap:dedent'" in workers[1].call(dedent_error, "worker0")
        workers.run(leave_now)


# --- other proofs ------------------------------------------------------------------------------------


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, folder: Path) -> None:
    check_another_authority(tmp_path, folder, NAME)


@pytest.mark.parametrize("has_secret", [True, False], ids=["secret", "nothing"])
def test_certificates_on_one_side_are_reported_on_both(
    tmp_path: Path, folder: Path, has_secret: bool
) -> None:
    credentials = {"secret": secrets.generate()} if has_secret else {}

    here, there = start_error(tmp_path, NAME, files(folder), credentials)

    assert "worker 'worker0' has a certificate" in here
    assert "RPC_BACKENDS_UCX_CERTIFICATE" in here
    assert "worker 'worker0' (rank 0) has a certificate, and worker 'worker1' has" in there


# --- time --------------------------------------------------------------------------------------------


def test_a_worker_refuses_to_start_with_an_expired_certificate(
    tmp_path: Path, folder: Path
) -> None:
    check_expired_at_start(tmp_path, folder, NAME)


def test_an_expired_certificate_is_refused_until_it_is_renewed(
    tmp_path: Path, folder: Path, over: dict[str, Any]
) -> None:
    check_expiry_and_renewal(tmp_path, folder, backend=NAME, **over)


def test_a_key_whose_access_rights_were_corrected_is_read_again(
    tmp_path: Path, folder: Path
) -> None:
    check_corrected_rights(tmp_path, folder, NAME)


# --- revocation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("revoked", ["worker1", "63"], ids=["name", "serial"])
def test_a_revoked_worker_is_cut_off_at_once(
    tmp_path: Path, folder: Path, over: dict[str, Any], revoked: str
) -> None:
    check_revocation(tmp_path, folder, revoked, backend=NAME, **over)


def test_a_revoked_worker_does_not_join(tmp_path: Path, folder: Path) -> None:
    check_revoked_joiner(tmp_path, folder, NAME)


# --- settings ----------------------------------------------------------------------------------------


def test_conflicting_settings_are_errors(folder: Path) -> None:
    given = files(folder)

    def error_of(options: dict[str, Any]) -> str:
        with pytest.raises(SettingError) as caught:
            settings_of(UCXRpcBackendOptions(**options), {})
        return str(caught.value)

    assert "in one way" in error_of({**given, "secret": secrets.generate()})
    error = error_of({**given, "certificate_key": None})
    assert "set RPC_BACKENDS_UCX_CERTIFICATE_KEY too" in error
