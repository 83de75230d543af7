"""A record in the store counts only if a holder of the secret wrote it for this worker and group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from rpc_backend_ucx import publication
from rpc_backend_ucx.processes import Process, this_process
from rpc_backend_ucx.publication import Publication
from rpc_backends_agents.engine import canonical, secret
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.host import Host
from rpc_backends_agents.engine.secret import Secret
from support.children import process_name

MINE = Publication(
    group="0123456789abcdef",
    worker_id=1,
    name="wörker 1",
    rank=2,
    host=Host("kernel", "4:5"),
    process=Process(7, 1234567, "4:6", "4:7", "4:8", "4:9"),
    address=publication.encoded(bytes(range(110))),
    session="0123456789abcdef" * 2,
    max_message_bytes=1 << 34,
    device_memory="cuda",
)


def opened(text: str, key: Secret | None, **expected: Any) -> Publication:
    defaults = {"group": MINE.group, "worker_id": 1, "name": MINE.name, "rank": MINE.rank}
    return Publication.open(text, key, reader="reader", **{**defaults, **expected})


def test_a_publication_arrives_unchanged(a_secret: Secret) -> None:
    assert opened(MINE.seal(a_secret), a_secret) == MINE
    assert opened(MINE.seal(None), None) == MINE
    assert MINE.address_bytes == bytes(range(110))


def test_any_change_of_a_sealed_publication_is_noticed(a_secret: Secret) -> None:
    text = MINE.seal(a_secret)

    for place in range(len(text)):
        changed = "0" if text[place] != "0" else "1"
        with pytest.raises(PublicationError):
            opened(text[:place] + changed + text[place + 1 :], a_secret)


def test_another_secret_worker_or_group_is_refused(a_secret: Secret) -> None:
    other_secret = secret.parse(secret.generate(), "the test")
    text = MINE.seal(a_secret)

    for key in (None, other_secret):
        with pytest.raises(PublicationError, match="RPC_BACKENDS_UCX_SECRET_FILE"):
            opened(text, key)
    for expected in ({"group": "another"}, {"worker_id": 3}, {"name": "x"}, {"rank": 9}):
        with pytest.raises(PublicationError, match="in the store"):
            opened(text, a_secret, **expected)


@pytest.mark.parametrize(
    "change",
    [
        {"address": "?"},
        {"address": "QQ==" * 4000},
        {"process": {"pid": -1, "start": 0, "namespace": ""}},
        {"process": None},
        {"session": "short"},
        {"max_message_bytes": "many"},
        {"more": 1},
    ],
)
def test_an_invalid_field_is_refused(change: dict[str, Any]) -> None:
    fields = {**json.loads(canonical.dump(MINE)), **change}
    payload = json.dumps(fields, sort_keys=True, separators=(",", ":"))

    with pytest.raises(PublicationError, match="in the store is invalid: "):
        opened(f"ucx4 open {payload}", None)


def test_a_greeting_holds_for_one_pair_of_sessions(a_secret: Secret) -> None:
    stranger = replace(MINE, worker_id=2, session="f" * 32)
    ours, theirs = publication.greetings(MINE, stranger, a_secret)

    assert publication.greetings(stranger, MINE, a_secret) == (theirs, ours)
    later = replace(stranger, session="e" * 32)
    assert not {ours, theirs} & set(publication.greetings(MINE, later, a_secret))
    assert not {ours, theirs} & set(publication.greetings(MINE, stranger, None))


def test_a_connection_key_belongs_to_one_group_and_secret(a_secret: Secret) -> None:
    other_secret = secret.parse(secret.generate(), "the test")
    keys = [
        publication.connection_key(group, key)
        for group in ("a", "b")
        for key in (None, a_secret, other_secret)
    ]

    assert len(set(keys)) == len(keys)
    assert publication.connection_key("a", a_secret) == keys[1]


def test_a_process_is_identified() -> None:
    assert this_process().pid > 0
    assert this_process() == this_process()


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.parametrize("options", [[], ["--mount-proc"]], ids=["outer", "own"])
def test_a_process_has_an_id_only_if_proc_is_that_of_its_namespace(options: list[str]) -> None:
    """Another process has its id in the outer one, and may end."""
    show = (
        "from rpc_backend_ucx.processes import this_process; me = this_process(); "
        "print(me.pid != 0, me.namespace != '', me.seen_from(me) != (0, 0))"
    )
    command = ["unshare", "--fork", "--pid", "--kill-child", *options, sys.executable, "-c", show]

    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert shown == ("True True True\n" if options else "False True False\n")


def test_the_name_of_a_process_may_have_any_bytes() -> None:
    with process_name(b"f\xc3"):
        assert this_process().pid == os.getpid()
