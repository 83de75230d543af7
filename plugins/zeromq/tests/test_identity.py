"""A record in the store is valid only if a holder of the secret wrote it for this worker and group."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from typing import Any

import pytest

from rpc_backend_zeromq import identity
from rpc_backend_zeromq._native import Transport
from rpc_backend_zeromq.publication import Publication, UnixSocket
from rpc_backend_zeromq.unix_sockets import Node
from rpc_backends_agents.engine import canonical, secret
from rpc_backends_agents.engine import sealed as seals
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.host import Host, Process
from rpc_backends_agents.engine.secret import Secret

PUBLIC_KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
MINE = Publication(
    group="0123456789abcdef",
    worker_id=1,
    name="wörker 1",
    rank=2,
    host=Host("kernel", "4:5"),
    tcp=("tcp://10.0.0.5:5000", "tcp://[fd00::1]:5000"),
    unix=UnixSocket("/run/user/0/rpc-zmq-abc/s", Node(25, 2**63)),
    public_key=PUBLIC_KEY,
    session="0123456789abcdef" * 2,
    max_message_bytes=1 << 34,
    process=Process(7, 1234567, "4:6"),
    place="route to node0, MASTER_ADDR=node0",
)


def opened(text: str, key: Secret | None, **expected: Any) -> Publication:
    encryption = expected.pop("encryption", True)
    defaults: dict[str, Any] = {
        "reader": "reader",
        "group": MINE.group,
        "worker_id": MINE.worker_id,
        "name": MINE.name,
        "rank": MINE.rank,
    }
    theirs = Publication.open(text, key, **{**defaults, **expected})
    identity.check_encryption(theirs, encryption=encryption, reader="reader")
    return theirs


def error_of(text: str, key: Secret | None, **expected: Any) -> str:
    with pytest.raises(PublicationError) as caught:
        opened(text, key, **expected)
    return str(caught.value)


def test_a_sealed_publication_opens_unchanged(a_secret: Secret) -> None:
    for published in (MINE, replace(MINE, unix=None, tcp=())):
        assert opened(published.seal(a_secret), a_secret) == published
        assert opened(published.seal(None), None) == published


def test_session_keys_are_new_and_valid_for_zeromq() -> None:
    keys = [identity.session_keys() for _ in range(2)]

    assert len({key for pair in keys for key in pair}) == 4
    publication = replace(MINE, public_key=keys[0][0].decode())
    assert opened(publication.seal(None), None) == publication


# --- forgeries -----------------------------------------------------------------------------------


def test_any_changed_character_of_a_publication_is_refused(a_secret: Secret) -> None:
    text = MINE.seal(a_secret)

    for place in range(len(text)):
        changed = "0" if text[place] != "0" else "1"
        error_of(text[:place] + changed + text[place + 1 :], a_secret)


def test_a_forged_payload_is_refused_with_an_explanation(a_secret: Secret) -> None:
    text = MINE.seal(a_secret)
    form, kind, fingerprint, proof, payload = text.split(" ", 4)
    forged = payload.replace("10.0.0.5", "10.6.6.6")

    why = error_of(f"{form} {kind} {fingerprint} {proof} {forged}", a_secret)

    assert (
        "the address of worker 'wörker 1' (rank 2) in the store was not written by a holder" in why
    )
    assert "from the test" in why


@pytest.mark.parametrize("proof", ["", "0" * 64, "é", "f" * 10_000])
def test_an_invalid_proof_is_refused(a_secret: Secret, proof: str) -> None:
    form, kind, fingerprint, _, payload = MINE.seal(a_secret).split(" ", 4)

    error_of(f"{form} {kind} {fingerprint} {proof} {payload}", a_secret)


def test_the_proof_is_checked_before_parsing(
    a_secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(Publication, "load", never)
    form, kind, fingerprint, proof, _ = MINE.seal(a_secret).split(" ", 4)

    error_of(f"{form} {kind} {fingerprint} {proof} {'[' * 10_000}", a_secret)


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ({"worker_id": 7}, "is that of worker 'wörker 1' (rank 2)"),
        (
            {"name": "w2"},
            "the address of worker 'w2' (rank 2) in the store is that of worker 'wörker 1'",
        ),
        ({"rank": 3}, "the address of worker 'wörker 1' (rank 3) in the store is that of worker"),
        ({"group": "another"}, "belongs to another group"),
    ],
)
def test_a_publication_of_another_worker_or_group_is_refused(
    a_secret: Secret, expected: dict[str, Any], why: str
) -> None:
    for key in (a_secret, None):
        assert why in error_of(MINE.seal(key), key, **expected)


# --- conflicting settings ------------------------------------------------------------------------


def test_a_secret_on_one_side_is_reported_on_both(a_secret: Secret) -> None:
    with_secret, without = MINE.seal(a_secret), MINE.seal(None)

    here, there = error_of(without, a_secret), error_of(with_secret, None)

    assert "worker 'wörker 1' (rank 2) has no secret, and worker 'reader' has one" in here
    assert f"from the test, fingerprint {a_secret.fingerprint}" in here
    assert "worker 'wörker 1' (rank 2) has a secret" in there
    assert "worker 'reader' has none" in there
    for text in (here, there):
        assert "Give all workers the same secret" in text


def test_different_secrets_are_reported_by_their_fingerprints(a_secret: Secret) -> None:
    other_secret = secret.parse(secret.generate(), "elsewhere")

    why = error_of(MINE.seal(other_secret), a_secret)

    assert (
        f"has a different secret (fingerprint {other_secret.fingerprint}) from worker 'reader'"
        in why
    )
    assert f"fingerprint {a_secret.fingerprint}" in why


def test_encryption_on_one_side_is_reported_on_both(a_secret: Secret) -> None:
    plain = replace(MINE, public_key=None)

    here = error_of(plain.seal(a_secret), a_secret, encryption=True)
    there = error_of(MINE.seal(a_secret), a_secret, encryption=False)

    assert "worker 'reader' encrypts and worker 'wörker 1' (rank 2) does not" in here
    assert "worker 'wörker 1' (rank 2) encrypts and worker 'reader' does not" in there
    assert opened(plain.seal(a_secret), a_secret, encryption=False) == plain


# --- invalid publications --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "another backend"),
        ("pigeon 1 2 3", "another backend"),
        ("zeromq5 sealed 1 2 {}", "another version of rpc-backend-zeromq"),
        ("zeromq4 ajar {}", "'ajar'"),
        ("zeromq4", "''"),
        ("zeromq4 open " + "[" * 10_000, "not JSON"),
        ("zeromq4 open " + "x" * 100_000, "too long"),
        ("zeromq4 open {}", "does not have the fields of a Publication"),
        ("zeromq4 open 3", "does not have the fields of a Publication"),
        ("zeromq4 open é", "not plain text"),
        ("zeromq4 sealed \x1b[31m 1 {}", "not plain text"),
        ("zeromq4 open {}\n", "not plain text"),
    ],
)
def test_an_invalid_publication_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in error_of(text, None)


BIG = "x" * 5000


@pytest.mark.parametrize(
    "change",
    [
        {"worker_id": -1},
        {"worker_id": 32768},
        {"worker_id": True},
        {"worker_id": 1.0},
        {"worker_id": "1"},
        {"rank": None},
        {"name": 3},
        {"name": BIG},
        {"group": BIG},
        {"place": BIG},
        {"place": "x\nERROR"},
        {"public_key": "short"},
        {"public_key": "é" * 40},
        {"public_key": PUBLIC_KEY + "\n"},
        {"tcp": "tcp://10.0.0.5:5000"},
        {"tcp": ["tcp://10.0.0.5:5000"] * 9},
        {"tcp": ["tcp://node0:5000"]},
        {"tcp": ["tcp://10.0.0.5:0"]},
        {"tcp": ["tcp://10.0.0.5:70000"]},
        {"tcp": ["tcp://10.0.0.5:5000;tcp://10.6.6.6:1"]},
        {"tcp": ["tcp://0.0.0.0:5000"]},
        {"tcp": ["tcp://[fe80::1%eth0]:5000"]},
        {"tcp": ["tcp://[10.0.0.5]:5000:1"]},
        {"tcp": ["ipc:///tmp/socket"]},
        {"tcp": ["inproc://here"]},
        {"tcp": [["tcp://10.0.0.5:5000"]]},
        {"host": {"kernel": "k"}},
        {"host": {"kernel": "k", "network": 3}},
        {"unix": {"path": "relative", "node": {"device": 1, "inode": 1}}},
        {"unix": {"path": "/with\0zero", "node": {"device": 1, "inode": 1}}},
        {"unix": {"path": "/" + "x" * 200, "node": {"device": 1, "inode": 1}}},
        {"unix": {"path": "/s", "node": {"device": 1, "inode": 2**64}}},
        {"unix": {"path": "/s", "node": {"device": 1}}},
        {"unix": "/s"},
        {"process": None},
        {"process": {"pid": -1, "start": 0, "namespace": ""}},
        {"process": {"pid": 2**22 + 1, "start": 0, "namespace": ""}},
        {"process": {"pid": 1, "start": 0.5, "namespace": ""}},
        {"extra": 1},
    ],
)
def test_an_invalid_field_is_refused(a_secret: Secret, change: dict[str, Any]) -> None:
    fields = {**json.loads(canonical.dump(MINE)), **change}
    payload = json.dumps(fields, sort_keys=True, separators=(",", ":"))

    # A broken worker that has the secret could write such a publication.
    proof = seals._proof(Publication.FORM, payload, a_secret)
    sealed = f"zeromq4 sealed {a_secret.fingerprint} {proof} {payload}"
    assert "the address of worker 'wörker 1' (rank 2) in the store is invalid: " in error_of(
        sealed, a_secret
    )
    error_of(f"zeromq4 open {payload}", None)


def test_only_the_canonical_json_form_is_accepted() -> None:
    payload = canonical.dump(MINE)

    for form in (
        f" {payload}",
        payload.replace(":", ": ", 1),
        payload.replace('"rank":2', '"rank":3,"rank":2'),
        json.dumps(json.loads(payload)),
    ):
        assert "in the store is invalid" in error_of(f"zeromq4 open {form}", None)


def test_keys_may_use_every_character_of_z85() -> None:
    alphabet = string.digits + string.ascii_letters + ".-:+=^!/*?&<>()[]{}@%$#"
    for start in range(0, len(alphabet), 40):
        key = (alphabet[start:] + alphabet)[:40]
        assert opened(replace(MINE, public_key=key).seal(None), None).public_key == key


# --- Unix sockets ------------------------------------------------------------------------------------


def test_each_side_expects_the_proofs_of_the_other(a_secret: Secret) -> None:
    peer = replace(MINE, worker_id=2, session="f" * 32)

    ours, theirs, our_answer, their_answer = identity.unix_proofs(MINE, peer, a_secret)

    assert identity.unix_proofs(peer, MINE, a_secret) == (theirs, ours, their_answer, our_answer)
    assert len({ours, theirs, our_answer, their_answer}) == 4
    assert {len(proof) for proof in (ours, theirs, our_answer, their_answer)} == {32}


@pytest.mark.parametrize(
    "change", [{"session": "e" * 32}, {"worker_id": 3}], ids=["session", "worker"]
)
def test_proofs_depend_on_session_and_worker(a_secret: Secret, change: dict[str, Any]) -> None:
    peer = replace(MINE, worker_id=2, session="f" * 32)

    shown = set(identity.unix_proofs(MINE, peer, a_secret))

    assert not shown & set(identity.unix_proofs(MINE, replace(peer, **change), a_secret))


def test_proofs_depend_on_the_secret(a_secret: Secret) -> None:
    peer = replace(MINE, worker_id=2, session="f" * 32)

    shown = set(identity.unix_proofs(MINE, peer, a_secret))

    assert not shown & set(identity.unix_proofs(MINE, peer, None))


def test_an_error_about_arguments_does_not_show_the_secret_key() -> None:
    """So a build of the compiled part that does not match fails without giving the key away."""
    public_key, secret_key = identity.session_keys()

    with pytest.raises(TypeError, match=r"secret_key=<a secret key of \d+ bytes>") as failure:
        Transport(public_key=public_key, secret_key=secret_key, no_such_option=1)  # type: ignore[call-arg]

    assert repr(bytes(secret_key)) not in str(failure.value)
