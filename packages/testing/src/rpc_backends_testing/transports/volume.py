"""Many messages, all sizes, and a long silence. These tests run last, because they take longest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import strategies as st

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import COUNTS, SIZES, Parts, is_large, message, shown
from rpc_backends_testing.transports.losses import send_until_it_arrives
from rpc_backends_testing.transports.properties import holds_for
from rpc_backends_testing.transports.threads import at_once
from rpc_backends_testing.transports.workers import Worker, Workers

#: One message of a conversation: whether worker 1 sends it, whether it is a reply, sizes of its parts.
Step = tuple[bool, bool, list[int]]
#: Sizes of the parts of one message.
Sizes = list[int]
_sizes = st.one_of(
    st.integers(0, 9),
    st.sampled_from([size for size in SIZES if size < 1 << 17]),
    st.integers(0, 70000),
)
message_sizes = st.lists(_sizes, max_size=12)
_LARGE = (8 << 20) + 5
#: How many messages are sent between two cuts.
_CUT_EVERY = 97


class VolumeTests:
    """Tests that send many messages."""

    @pytest.mark.parametrize("kind", ["one part", "among others"])
    def test_sizes_of_parts(self, transports: Workers, kind: str) -> None:
        """Parts of every size arrive: empty ones, and those around each power of two.

        If it fails, look at limits of buffers, headers and packets, and at loops around partial reads and
        writes.
        """
        with transports() as (worker0, worker1):
            for size in SIZES:
                sizes = [size] if kind == "one part" else [3, size, 0, size, 1]
                parts = message(size, sizes)
                worker0.send(1, parts)
                worker1.expect(worker0, parts)

    def test_numbers_of_parts(self, transports: Workers) -> None:
        """Messages with any number of parts arrive, from none to thousands.

        A system call takes 1024 buffers at most (`IOV_MAX`).
        """
        with transports() as (worker0, worker1):
            for count in COUNTS:
                parts = message(count, [(place * 7) % 23 for place in range(count)])
                worker0.send(1, parts)
                worker1.expect(worker0, parts)

    def test_empty_parts(self, transports: Workers) -> None:
        """Empty parts arrive, at any place in a message."""
        with transports() as (worker0, worker1):
            for sizes in itertools.chain.from_iterable(
                itertools.product((0, 5), repeat=count) for count in range(1, 5)
            ):
                parts = message(sizes, sizes)
                worker0.send(1, parts)
                worker1.expect(worker0, parts)

    def test_any_messages(self, transports: Workers) -> None:
        """Any messages arrive once each, with their parts bit by bit; small messages in order."""

        def check(messages: Sequence[Sizes]) -> None:
            with transports() as (worker0, worker1):
                sent = [message(place, sizes) for place, sizes in enumerate(messages)]
                worker0.send_all(1, sent)
                worker1.expect_all(worker0, sent)

        holds_for(check, st.lists(message_sizes, min_size=1, max_size=6), examples=40)

    def test_order(self, transports: Workers) -> None:
        """A thousand messages arrive in the order in which they were sent, once each."""
        with transports() as (worker0, worker1):
            sent = [message(place, [4, place % 7, (place % 11) * 100]) for place in range(1000)]
            worker0.send_all(1, sent)
            for parts in sent:
                worker1.expect(worker0, parts)

    def test_large_message(self, transports: Workers) -> None:
        """A message of 8 MiB arrives, as do small ones before and after it."""
        with transports() as (worker0, worker1):
            sent = [
                message("before", [7]),
                message("large", [11, _LARGE, 0]),
                message("after", [7]),
            ]
            worker0.send_all(1, sent)
            worker1.expect_all(worker0, sent)

    def test_idle_connection(self, transports: Workers) -> None:
        """A connection without messages for three seconds is not lost, and carries messages again.

        If it fails, look at the time limits of sockets: they must apply only while a connection starts.
        """
        with transports() as (worker0, worker1):
            for sender, receiver in ((worker0, worker1), (worker1, worker0)):
                sender.send(receiver.id, message("before", [8]))
                receiver.expect(sender, message("before", [8]))
            if worker0.inbox.wait_for(lambda events: any(e.kind == "lost" for e in events), 3.0):
                worker0.check()
            for sender, receiver in ((worker0, worker1), (worker1, worker0)):
                sender.send(receiver.id, message("after", [8]))
                receiver.expect(sender, message("after", [8]))

    def test_any_conversation(self, transports: Workers) -> None:
        """Requests and replies of both workers arrive in any mix. Small ones keep their order."""

        def check(steps: Sequence[Step]) -> None:
            with transports() as workers:
                _first_requests(workers)
                sent: dict[tuple[int, bool], list[Parts]] = {}
                for place, (by_one, reply, sizes) in enumerate(steps):
                    parts = message(place, sizes)
                    workers[by_one].send(1 - by_one, parts, reply=reply)
                    sent.setdefault((int(by_one), reply), []).append(parts)
                for sender in workers:
                    _expect_mixed(
                        sender,
                        workers[1 - sender.id],
                        sent.get((sender.id, False), []),
                        sent.get((sender.id, True), []),
                    )

        step = st.tuples(st.booleans(), st.booleans(), message_sizes)
        holds_for(check, st.lists(step, min_size=1, max_size=8), examples=30)

    def test_nothing_twice_after_a_cut(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """Messages in flight when a connection is cut arrive once each or not at all.

        If one does not arrive, its sender's inbox gets `lost`. No message is ever sent again. Messages
        sent before a cut may arrive after later ones.
        """
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            failed = 0
            for place in range(400):
                if place % _CUT_EVERY == 50:
                    cutting.cut(cutting.connections() - cutting.before)
                failed += worker0.try_send(1, _numbered(place)) is not None
            if not failed and not any(event.kind == "lost" for event in worker0.inbox.events):
                worker0.inbox.wait_for(lambda events: any(e.kind == "lost" for e in events), 1.0)
            send_until_it_arrives(worker0, worker1, message("last", [5]))
            numbers = [
                _number(worker0, event.parts)
                for event in worker1.take_messages()
                if event.parts not in worker1.may_get
            ]
            for one_before, number in itertools.pairwise(sorted(numbers, key=_cuts_before)):
                if number <= one_before:
                    raise worker0.deviation(
                        "send(1, ...) while connections are cut",
                        "each message arrives once at most, in order between two cuts",
                        f"message {number} arrives after message {one_before}",
                    )
            lost = any(event.kind == "lost" for event in worker0.inbox.events)
            if len(numbers) < 400 and not lost and not failed:
                raise worker0.deviation(
                    "send(1, ...) while connections are cut",
                    "each message arrives, or send() raises an error, or the inbox gets lost(1, ...)",
                    f"{400 - len(numbers)} of 400 messages do not arrive, and there is no loss",
                )

    def test_many_threads(self, transports: Workers) -> None:
        """All messages that many threads send to one peer arrive. Those of one thread arrive in order.

        The agent calls a C++ transport on many threads at once, and a Python transport on one per peer.
        """
        with transports() as (worker0, worker1):
            sent = [[message((thread, i), [3, 700 + i]) for i in range(50)] for thread in range(8)]
            at_once(partial(worker0.send_all, 1, own) for own in sent)
            places = [0] * len(sent)
            for _ in range(sum(map(len, sent))):
                parts = worker1.receive(0)
                thread = next(
                    (
                        thread
                        for thread, own in enumerate(sent)
                        if places[thread] < len(own) and own[places[thread]] == parts
                    ),
                    None,
                )
                if thread is None:
                    raise worker0.deviation(
                        "send(1, ...) on eight threads",
                        "each message arrives as it was sent, those of a thread in order",
                        "another one arrives",
                    )
                places[thread] += 1


def _first_requests(workers: Sequence[Worker]) -> None:
    """Send each worker a request that it can reply to."""
    for caller, callee in (workers, workers[::-1]):
        caller.send(callee.id, message("first", [6]))
        callee.expect(caller, message("first", [6]))


def _expect_mixed(
    sender: Worker, receiver: Worker, requests: list[Parts], replies: list[Parts]
) -> None:
    """Check that small requests arrive in order, and replies too. One kind may overtake the other."""
    large = [parts for parts in (*requests, *replies) if is_large(parts)]
    requests, replies = (
        [parts for parts in kind if not is_large(parts)] for kind in (requests, replies)
    )
    states = {(0, 0)}
    for _ in range(len(requests) + len(replies) + len(large)):
        parts = receiver.receive(sender.id)
        if parts in large:
            large.remove(parts)
            continue
        reached = {(i + 1, j) for i, j in states if i < len(requests) and requests[i] == parts}
        reached |= {(i, j + 1) for i, j in states if j < len(replies) and replies[j] == parts}
        if not reached:
            awaited = [requests[i] for i, _ in states if i < len(requests)]
            awaited += [replies[j] for _, j in states if j < len(replies)]
            awaited += large
            raise sender.deviation(
                f"send({receiver.id}, ...)",
                f"{receiver.name}'s inbox gets {' or '.join(map(shown, awaited[:2]))} next",
                f"it gets deliver({sender.id}, {shown(parts)})",
            )
        states = reached


def _numbered(place: int) -> list[bytes]:
    return [place.to_bytes(8, "little"), b"x" * (place % 50)]


def _cuts_before(place: int) -> int:
    """Return how many cuts came before this message was sent."""
    return (place + _CUT_EVERY - 50) // _CUT_EVERY


def _number(sender: Worker, parts: list[bytes]) -> int:
    number = int.from_bytes(parts[0], "little") if parts else -1
    if number < 0 or parts != _numbered(number):
        raise sender.deviation("send(1, ...) while connections are cut", "whole messages", "a part")
    return number
