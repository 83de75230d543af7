"""Fuzz the readers of a store: any contents give a valid value or the documented error.

    python store.py TARGET [INPUTS [SEED]]

`run.sh` runs this file. An input is a text that workers write, with bytes or JSON values changed. The
first input that breaks the rule of its target is printed and ends the run with status 1.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch.distributed as dist

from rpc_backend_tensorpipe import membership
from rpc_backend_zeromq import identity, publication
from rpc_backend_zeromq.publication import Publication, UnixSocket
from rpc_backend_zeromq.unix_sockets import Node
from rpc_backends_agents.engine import canonical, secret
from rpc_backends_agents.engine import sealed as seals
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.host import Host, Process
from rpc_backends_agents.member_records import Peer
from rpc_backends_agents.roster import Roster
from rpc_backends_core._device_maps import WorkerDevices
from rpc_backends_core._group import composition, contents
from rpc_backends_core._group.answers import read_answer
from rpc_backends_core.spi import GroupError, StoreError, processes

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 32767, 32768, 65535, 2**31, 2**63, -(2**63), 10**30, 0.5),
    *("", "x", "\0", "\ud800", "é" * 200, "a" * 2000, "static/2", "dynamic", "peer", "in", "out"),
    *("tcp://127.0.0.1:1", "tcp://[::1]:65536", "tcp://0.0.0.0:1", "uv://127.0.0.1:1", "cpu", "/x"),
    *([], {}, [[]], [1, 2], {"name": "x"}, {"error": "x"}, {"error": []}),
]  # fmt: skip
BYTES = [
    b"",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\xff",
    b"0",
    b"-",
    b"1e999",
    b"null",
]
DEEP = b"[" * 100_000


class Mutator:
    """Makes inputs by changing seeds."""

    def __init__(self, seeds: list[bytes], seed: int) -> None:
        self.seeds = seeds
        self.random = random.Random(seed)

    def text(self) -> bytes:
        """Return a seed with one to six changes."""
        some = self.random
        text = some.choice(self.seeds)
        for _ in range(some.choice((1, 1, 1, 2, 3, 6))):
            text = self._values(text) if some.random() < 0.6 else self._bytes(text)
        return text

    def _values(self, text: bytes) -> bytes:
        begin = max(text.find(b"{"), 0)
        try:
            value = json.loads(text[begin:])
        except (ValueError, RecursionError):
            return self._bytes(text)
        places = list(_places(value))
        if not places:
            return self._bytes(text)
        some = self.random
        holder, key = some.choice(places)
        what = some.randrange(4)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[some.choice(["x", "name", "id", "rank", "kind", "number"])] = some.choice(ODD)
        elif what == 2:
            another, there = some.choice(places)
            holder[key] = json.loads(json.dumps(another[there])) if there in _keys(another) else 0
        else:
            holder[key] = some.choice(ODD)
        dumped = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return text[:begin] + dumped.encode(errors="surrogatepass")

    def _bytes(self, text: bytes) -> bytes:
        some = self.random
        begin = some.randrange(len(text) + 1)
        what = some.randrange(6)
        if what == 0 and begin < len(text):
            return text[:begin] + bytes([text[begin] ^ 1 << some.randrange(8)]) + text[begin + 1 :]
        if what == 1:
            return text[:begin] + some.choice(BYTES) + text[begin:]
        if what == 2:
            return text[:begin] + text[begin + some.randrange(1, 20) :]
        if what == 3:
            return text[:begin]
        if what == 4:
            another = some.choice(self.seeds)
            return text[:begin] + another[some.randrange(len(another) + 1) :]
        return DEEP if some.random() < 0.001 else text[:begin] + some.randbytes(4) + text[begin:]


def _keys(holder: Any) -> Any:
    return holder.keys() if isinstance(holder, dict) else range(len(holder))


def _places(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict | list) and depth < 6:
        for key in list(_keys(value))[:50]:
            yield value, key
            yield from _places(value[key], depth + 1)


# --- targets: each returns its seeds and the function that checks an input -----------------------------


def records() -> tuple[list[bytes], Callable[[bytes], None]]:
    """Read the list of members of a dynamic group: invalid records are skipped, ids stay unique."""
    seeds = [
        json.dumps({"kind": "peer", "name": f"w{n}", "rank": n, "id": n, "address": f"at {n}"}).encode()
        for n in range(1, 6)
    ]  # fmt: skip
    for kind in ("in", "out"):
        seeds += [json.dumps({"kind": kind, "number": n}).encode() for n in (1, 2, 9)]
    members: dict[int, Peer] = {}

    def fresh() -> Roster:
        members.clear()
        roster = Roster(
            dist.HashStore(),
            "me",
            on_peer=lambda peer: True,
            on_join=lambda peer: members.update({peer.worker_id: peer}),
            on_leave=lambda peer: members.pop(peer.worker_id),
        )
        roster.announce("me", 0, roster.take_id(0), "at me")
        return roster

    state: list[Any] = [fresh(), 1]

    def take(text: bytes) -> None:
        roster = state[0]
        state[1] += 1
        number = state[1]
        roster._apply_all({number: text})
        assert 0 not in members
        for worker_id, peer in members.items():
            assert 0 <= peer.rank <= contents.MAX_ID
            assert 0 <= worker_id <= contents.MAX_ID
            assert 0 < len(peer.name) <= 128
        if number % 64 == 0:
            store = dist.HashStore()
            store.set("records", text)
            store.set("record/1", text)
            try:
                fetched, missing, read = roster._fetch(store, 1.0)
                assert len(fetched) <= 1 and len(missing) <= 512 and read <= 4 * 32768
            except StoreError:
                pass
            state[0:] = [fresh(), 1]

    return seeds, take


def group() -> tuple[list[bytes], Callable[[bytes], None]]:
    """Read arrivals, the group composed of them, and exchanges: the result is complete, or an error."""
    arrivals = [
        {"name": f"w{n}", "rank": n, "backend": "B", "nonce": str(n), "fixed_id": None, "where": "h"}
        for n in range(3)
    ]  # fmt: skip
    made = composition.compose(arrivals)
    answers: list[Any] = [
        made,
        {"error": "why", "kind": "ValueError"},
        {"payloads": ["a", [1], {}]},
    ]
    seeds = [json.dumps(arrival).encode() for arrival in [*arrivals, *answers]]

    def take(text: bytes) -> None:
        arrived: list[Any] = list(arrivals)
        for rank in range(3):
            with contextlib.suppress(StoreError):
                arrived[rank] = contents.parsed("slot", text, partial(composition.arrival_of, rank))
        again = composition.compose(arrived)
        if "error" not in again:
            composition.members_of(3, json.loads(json.dumps(again)))
        try:
            answer = read_answer("group", text, 3)
        except (GroupError, ValueError):
            return
        try:
            nonces, members = contents.checked("group", answer, partial(composition.members_of, 3))
        except StoreError:
            return
        assert len(nonces) == 3
        for rank, (name, its, worker_id, autograd_id) in enumerate(members):
            assert type(name) is str and its == rank and min(worker_id, autograd_id) >= 0
            assert max(worker_id, autograd_id) <= contents.MAX_ID

    return seeds, take


def publications() -> tuple[list[bytes], Callable[[bytes], None]]:
    """Read addresses with and without a proof: accepted ones are proved and have the canonical form."""
    key = secret.parse(secret.generate(), "the fuzzer")
    public = identity.session_keys()[0].decode()
    unix = UnixSocket("/run/x/s", Node(1, 2))
    full = Publication(
        group="g" * 64,
        worker_id=1,
        name="w1",
        rank=1,
        host=Host("k", "n"),
        tcp=("tcp://127.0.0.1:5000",),
        unix=unix,
        public_key=public,
        session="0" * 32,
        max_message_bytes=1,
        process=Process(7, 1234567, "4:6"),
        place="loopback",
    )
    bare = Publication(
        **{**vars(full), "unix": None, "tcp": ("tcp://[fd00::1]:80", "tcp://10.0.0.1:81")}
    )
    sealed = [each.seal(key) for each in (full, bare)]
    seeds = [*sealed, full.seal(None), bare.seal(None)]

    def believed(text: str, known: Any) -> Publication | None:
        try:
            return Publication.open(
                text,
                known,
                reader="w0",
                group="g" * 64,
                worker_id=1,
                name="w1",
                rank=1,
            )
        except PublicationError as error:
            assert len(str(error)) < 2000
            return None

    def take(raw: bytes) -> None:
        text = raw.decode(errors="surrogateescape")
        if believed(text, key) is not None:
            assert text in sealed, "a proof was forged"
        begin = text.find("{")
        payload = text[begin:] if begin >= 0 else text
        try:
            proof = seals._proof(Publication.FORM, payload, key)
        except UnicodeEncodeError:
            return
        # With a secret, only its holders can write this; without one, any process can.
        for form, known in (
            (f"{Publication.FORM.word} sealed {key.fingerprint} {proof} {payload}", key),
            (f"{Publication.FORM.word} open {payload}", None),
        ):
            believed_publication = believed(form, known)
            if believed_publication is not None:
                assert canonical.dump(believed_publication) == payload
                assert json.loads(payload) == json.loads(json.dumps(asdict(believed_publication)))
                assert all(publication.parse_tcp(endpoint) for endpoint in believed_publication.tcp)

    return [seed.encode() for seed in seeds], take


def members() -> tuple[list[bytes], Callable[[bytes], None]]:
    """Read TENSORPIPE's list of members: it survives a round trip, or is an error."""
    known_processes = [(), ("no such host", 7, "9"), tuple(processes.this_process())]
    peers = [
        membership.Peer(f"w{n}", n, n, WorkerDevices(f"w{n}", None, 0, {}, []), "uv://h:1", ("::1", n))
        for n in range(3)
    ]  # fmt: skip
    peers = [replace(peer, process=known_processes[peer.rank]) for peer in peers]
    state = membership.State(3, {peer.name: peer for peer in peers}, frozenset(range(3)))
    empty = membership.State()
    seeds = [
        json.dumps({**state_form.to_json(), "key": "ab" * 32, "by": "x"}).encode()
        for state_form in (state, empty)
    ]

    def take(text: bytes) -> None:
        try:
            _, parsed = contents.parsed("members", text, membership._list)
        except StoreError:
            return
        again = membership.State.from_json(json.loads(json.dumps(parsed.to_json())))
        assert again == parsed
        ids = [peer.worker_id for peer in parsed.peers.values()]
        assert all(
            peer.process_has_ended() in (True, False, None) for peer in parsed.peers.values()
        )
        assert len(ids) == len(set(ids)) and all(map(contents.is_id, [*ids, *parsed.used]))

    return seeds, take


TARGETS = {target.__name__: target for target in (records, group, publications, members)}


def main(name: str, inputs: int = 10_000_000, seed: int = 0) -> int:
    """Run one target; return the exit status."""
    logging.disable(logging.CRITICAL)
    seeds, take = TARGETS[name]()
    for text in seeds:
        take(text)
    mutator = Mutator(seeds, seed)
    begin = time.monotonic()
    for number in range(1, inputs + 1):
        text = mutator.text()
        try:
            take(text)
        except Exception:
            traceback.print_exc()
            print(f"ERROR: {name}, seed {seed}, input {number}: {text[:2000]!r}")
            return 1
        if number % 100_000 == 0 or number == inputs:
            rate = number / (time.monotonic() - begin)
            print(f"{name}: {number} inputs, {rate:.0f} a second, no findings", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
