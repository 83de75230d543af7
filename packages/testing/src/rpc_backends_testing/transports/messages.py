"""Messages arrive as they were sent: parts, sizes, contents and order."""

from __future__ import annotations

import itertools

from rpc_backends_testing.transports.content import message
from rpc_backends_testing.transports.workers import Workers


class MessageTests:
    """Tests of how messages arrive."""

    def test_one_message(self, transports: Workers) -> None:
        """A message arrives.

        The transport gets `listen`, then `learn`, then `send`; the peer's inbox must get `deliver`.
        """
        with transports() as (worker0, worker1):
            parts = message("one", [5, 300])
            worker0.send(1, parts)
            worker1.expect(worker0, parts)

    def test_message_before_learn(self, transports: Workers) -> None:
        """A message of a peer arrives even if this worker has not learned the peer's address yet.

        It arrives at the latest after `learn`. Workers of a group call `learn` at different times.
        """
        with transports(2, learn=False) as (worker0, worker1):
            worker0.learn(worker1)
            parts = message("early", [5, 300])
            worker0.send(1, parts)
            worker1.inbox.wait_for(bool, 0.2)  # a transport may deliver it at once
            worker1.learn(worker0)
            worker1.expect(worker0, parts)
            worker1.send(0, parts, reply=True)
            worker0.expect(worker1, parts, reply=True)

    def test_both_directions(self, transports: Workers) -> None:
        """Either of two workers may send first, or both at the same time."""
        for first in range(6):
            with transports() as workers:
                for sender in workers if first % 2 else workers[::-1]:
                    sender.send(1 - sender.id, message((first, sender.id), [9]))
                for sender, receiver in (workers, workers[::-1]):
                    receiver.expect(sender, message((first, sender.id), [9]))

    def test_same_contents(self, transports: Workers) -> None:
        """Equal messages arrive as often as they were sent."""
        with transports() as (worker0, worker1):
            parts = message("same", [17, 0, 4096])
            worker0.send_all(1, [parts] * 6)
            for _ in range(6):
                worker1.expect(worker0, parts)

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

    def test_sent_memory(self, transports: Workers) -> None:
        """A message arrives unchanged, even if its memory is reused once the transport has released it.

        A transport that keeps a part after `send` must hold a reference to it while it needs the bytes.
        """
        with transports() as (worker0, worker1):
            for round_ in range(8):
                memory = bytearray(message(round_, [100_000])[0])
                expected = [bytes(memory), b"end"]
                worker0.send(1, [memory, b"end"])  # type: ignore[list-item]  # memoryview() takes both
                _overwrite_when_free(memory)
                worker1.expect(worker0, expected)

    def test_delivered_memory(self, transports: Workers) -> None:
        """The memory of a delivered part is not reused for later messages.

        Delivered parts become the memory of tensors, so give each message its own memory.
        """
        with transports() as (worker0, worker1):
            for place in range(12):
                worker0.send(1, message(place, [64, 5000]))
                worker1.expect(worker0, message(place, [64, 5000]))
            events = [event for event in worker1.inbox.events if event.kind == "deliver"]
            for place, event in enumerate(events):
                if [bytes(view) for view in event.memory] != message(place, [64, 5000]):
                    raise worker1.deviation(
                        "inbox.deliver(0, parts)",
                        "the transport does not write to parts that it has delivered",
                        f"message {place} of 12 has changed after later ones arrived",
                    )


def _overwrite_when_free(memory: bytearray) -> None:
    """Overwrite a buffer if no other object refers to its memory."""
    try:
        memory.append(0)  # fails while its memory is exported
    except BufferError:
        return
    memory[:] = bytes(len(memory))
