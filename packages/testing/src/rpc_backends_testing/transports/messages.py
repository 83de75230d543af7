"""Messages arrive as they were sent: parts, sizes, contents and order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from rpc_backends_testing.transports.content import COUNTS, SIZES, message
from rpc_backends_testing.transports.properties import holds_for
from rpc_backends_testing.transports.workers import Workers

#: Sizes of the parts of one message.
Sizes = list[int]
_sizes = st.one_of(
    st.integers(0, 9),
    st.sampled_from([size for size in SIZES if size < 1 << 17]),
    st.integers(0, 70000),
)
message_sizes = st.lists(_sizes, max_size=12)
_LARGE = (8 << 20) + 5


class MessageTests:
    """Tests of how messages arrive."""

    def test_one_message(self, transports: Workers) -> None:
        """A message arrives.

        The transport gets `listen`, then `learn`, then `send`; the peer's inbox must get `deliver`.
        """
        with transports() as (zero, one):
            parts = message("one", [5, 300])
            zero.send(1, parts)
            one.expect(zero, parts)

    def test_message_before_learn(self, transports: Workers) -> None:
        """A message of a peer arrives even if this worker has not learned the peer's address yet.

        It arrives at the latest after `learn`. Workers of a group call `learn` at different times.
        """
        with transports(2, learn=False) as (zero, one):
            zero.learn(one)
            parts = message("early", [5, 300])
            zero.send(1, parts)
            one.inbox.wait_for(bool, 0.2)  # a transport may deliver it at once
            one.learn(zero)
            one.expect(zero, parts)
            one.send(0, parts, reply=True)
            zero.expect(one, parts, reply=True)

    def test_both_directions(self, transports: Workers) -> None:
        """Either of two workers may send first, or both at the same time."""
        for first in range(6):
            with transports() as workers:
                for sender in workers if first % 2 else workers[::-1]:
                    sender.send(1 - sender.id, message((first, sender.id), [9]))
                for sender, receiver in (workers, workers[::-1]):
                    receiver.expect(sender, message((first, sender.id), [9]))

    @pytest.mark.parametrize("kind", ["one part", "among others"])
    def test_sizes_of_parts(self, transports: Workers, kind: str) -> None:
        """Parts of every size arrive: empty ones, and those around each power of two.

        If it fails, look at limits of buffers, headers and packets, and at loops around partial reads and
        writes.
        """
        with transports() as (zero, one):
            for size in SIZES:
                sizes = [size] if kind == "one part" else [3, size, 0, size, 1]
                parts = message(size, sizes)
                zero.send(1, parts)
                one.expect(zero, parts)

    def test_numbers_of_parts(self, transports: Workers) -> None:
        """Messages with any number of parts arrive, from none to thousands.

        A system call takes 1024 buffers at most (`IOV_MAX`).
        """
        with transports() as (zero, one):
            for count in COUNTS:
                parts = message(count, [(place * 7) % 23 for place in range(count)])
                zero.send(1, parts)
                one.expect(zero, parts)

    def test_empty_parts(self, transports: Workers) -> None:
        """Empty parts arrive, at any place in a message."""
        with transports() as (zero, one):
            for sizes in itertools.chain.from_iterable(
                itertools.product((0, 5), repeat=count) for count in range(1, 5)
            ):
                parts = message(sizes, sizes)
                zero.send(1, parts)
                one.expect(zero, parts)

    def test_any_messages(self, transports: Workers) -> None:
        """Any messages arrive once each, in order, with their parts in order and bit by bit."""

        def check(messages: Sequence[Sizes]) -> None:
            with transports() as (zero, one):
                sent = [message(place, sizes) for place, sizes in enumerate(messages)]
                zero.send_all(1, sent)
                for parts in sent:
                    one.expect(zero, parts)

        holds_for(check, st.lists(message_sizes, min_size=1, max_size=6), examples=40)

    def test_order(self, transports: Workers) -> None:
        """A thousand messages arrive in the order in which they were sent, once each."""
        with transports() as (zero, one):
            sent = [message(place, [4, place % 7, (place % 11) * 100]) for place in range(1000)]
            zero.send_all(1, sent)
            for parts in sent:
                one.expect(zero, parts)

    def test_large_message(self, transports: Workers) -> None:
        """A message of 8 MiB arrives, as do small ones before and after it."""
        with transports() as (zero, one):
            sent = [
                message("before", [7]),
                message("large", [11, _LARGE, 0]),
                message("after", [7]),
            ]
            zero.send_all(1, sent)
            for parts in sent:
                one.expect(zero, parts)

    def test_same_contents(self, transports: Workers) -> None:
        """Equal messages arrive as often as they were sent."""
        with transports() as (zero, one):
            parts = message("same", [17, 0, 4096])
            zero.send_all(1, [parts] * 20)
            for _ in range(20):
                one.expect(zero, parts)

    def test_peers_are_told_apart(self, transports: Workers) -> None:
        """A message is delivered only to its receiver, with the worker id of its sender."""
        with transports(3) as workers:
            pairs = list(itertools.permutations(workers, 2))
            for sender, receiver in pairs:
                sender.send(receiver.id, message((sender.id, receiver.id), [20, 5000]))
            for sender, receiver in pairs:
                parts = receiver.receive(sender.id)
                if parts != message((sender.id, receiver.id), [20, 5000]):
                    raise sender.deviation(
                        f"send({receiver.id}, ...)",
                        f"{receiver.name}'s inbox gets the message that {sender.name} sent to it",
                        "it gets another one",
                    )

    def test_idle_connection(self, transports: Workers) -> None:
        """A connection without messages for three seconds is not lost, and carries messages again.

        If it fails, look at the time limits of sockets: they must apply only while a connection starts.
        """
        with transports() as (zero, one):
            for sender, receiver in ((zero, one), (one, zero)):
                sender.send(receiver.id, message("before", [8]))
                receiver.expect(sender, message("before", [8]))
            if zero.inbox.wait_for(lambda events: any(e.kind == "lost" for e in events), 3.0):
                zero.check()
            for sender, receiver in ((zero, one), (one, zero)):
                sender.send(receiver.id, message("after", [8]))
                receiver.expect(sender, message("after", [8]))

    def test_sent_memory(self, transports: Workers) -> None:
        """A message arrives unchanged, even if its memory is reused once the transport has released it.

        A transport that keeps a part after `send` must hold a reference to it while it needs the bytes.
        """
        with transports() as (zero, one):
            for round_ in range(20):
                memory = bytearray(message(round_, [100_000])[0])
                expected = [bytes(memory), b"end"]
                zero.send(1, [memory, b"end"])  # type: ignore[list-item]  # memoryview() takes both
                _overwrite_when_free(memory)
                one.expect(zero, expected)

    def test_delivered_memory(self, transports: Workers) -> None:
        """The memory of a delivered part is not reused for later messages.

        Delivered parts become the memory of tensors, so give each message its own memory.
        """
        with transports() as (zero, one):
            for place in range(30):
                zero.send(1, message(place, [64, 5000]))
                one.expect(zero, message(place, [64, 5000]))
            events = [event for event in one.inbox.events if event.kind == "deliver"]
            for place, event in enumerate(events):
                if [bytes(view) for view in event.memory] != message(place, [64, 5000]):
                    raise one.deviation(
                        "inbox.deliver(0, parts)",
                        "nobody writes to the parts after they were delivered",
                        f"message {place} of 30 has changed after later ones arrived",
                    )


def _overwrite_when_free(memory: bytearray) -> None:
    """Overwrite a buffer if no other object refers to its memory."""
    try:
        memory.append(0)  # fails while its memory is exported
    except BufferError:
        return
    memory[:] = bytes(len(memory))
