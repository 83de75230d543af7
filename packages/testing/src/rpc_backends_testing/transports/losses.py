"""Losses: connections that break, peers that close, and how messages arrive afterwards."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import message
from rpc_backends_testing.transports.replies import NO_CONNECTION
from rpc_backends_testing.transports.workers import Worker, Workers

_CUT = "(the connection to worker1 is cut; a request of worker0 waits for its answer)"


class LossTests:
    """Tests of lost connections, of the events that report them, and of peers that are found again."""

    def test_cut_is_reported(self, transports: Workers, cutting: resources.Cutting) -> None:
        """When a connection with a request in flight is cut, the sender's inbox gets `lost`.

        The transport must notice the cut by itself, because nothing more is sent. For example, the thread
        that reads the connection calls `inbox.lost` when it ends.
        """
        with transports() as (worker0, worker1):
            _cut(worker0, worker1, cutting)
            worker0.expect_lost(1, _CUT)

    def test_lost_peer_is_found(self, transports: Workers, cutting: resources.Cutting) -> None:
        """After a cut the peer is found again and messages arrive as before, three times in a row.

        After `lost`, calls to the peer fail at once until the inbox gets `found`. A transport that
        connects when it sends reports `found` right after `lost`.
        """
        with transports() as (worker0, worker1):
            for round_ in range(3):
                _cut(worker0, worker1, cutting)
                worker0.expect_lost(1, _CUT)
                worker0.expect_found(1, _CUT)
                worker1.may_lose.add(0)
                for size in (0, 10, 100_000):
                    request, reply = (
                        message(("request", round_), [size, 3]),
                        message("reply", [size]),
                    )
                    send_until_it_arrives(worker0, worker1, request)
                    worker1.send(0, reply, reply=True)
                    worker0.expect(worker1, reply, reply=True)
                send_until_it_arrives(worker1, worker0, message("back", [12]))

    def test_loss_comes_before_found(self, transports: Workers, cutting: resources.Cutting) -> None:
        """The loss of a peer is reported before the event that it was found again."""
        with transports() as (worker0, worker1):
            _cut(worker0, worker1, cutting)
            worker0.expect_lost(1, _CUT)
            worker0.expect_found(1, _CUT)
            kinds = [
                event.kind for event in worker0.inbox.events if event.kind in ("lost", "found")
            ]
            if kinds[0] != "lost" or kinds[-1] != "found":
                raise worker0.deviation(
                    _CUT, "worker0's inbox gets lost(1, ...) and then found(1)", ", ".join(kinds)
                )

    def test_cut_loses_one_peer_only(self, transports: Workers, cutting: resources.Cutting) -> None:
        """The loss of one peer does not affect the connections to others."""
        with transports(3) as (worker0, worker1, worker2):
            before = cutting.connections()
            worker0.send(2, message("request", [10]))
            worker2.expect(worker0, message("request", [10]))
            kept = cutting.connections() - before
            _cut(worker0, worker1, cutting, keep=kept)
            worker0.expect_lost(1, _CUT)
            worker2.send(0, message("reply", [10]), reply=True)
            worker0.expect(worker2, message("reply", [10]), reply=True)
            worker0.send(2, message("next", [11]))
            worker2.expect(worker0, message("next", [11]))

    def test_no_part_of_a_message(self, transports: Workers, cutting: resources.Cutting) -> None:
        """A message whose connection is cut halfway is not delivered, not even in part."""
        with transports() as (worker0, worker1):
            worker0.send(1, message("first", [10]))
            worker1.expect(worker0, message("first", [10]))
            if not cutting.connections() - cutting.before:
                pytest.skip(NO_CONNECTION)
            worker1.stop_receiving(worker0)
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            whole = message("large", [1 << 14] * 1000)
            sending = worker0.start_sending(1, [whole] * 3)
            sending.wait(0.2)
            names = cutting.connections() - cutting.before
            cutting.cut(names)
            worker1.inbox.unblock()
            worker0.expect_lost_or_error(
                1, sending, "(the connection is cut while worker0 sends 47 MiB)"
            )
            send_until_it_arrives(worker0, worker1, message("after", [8]))
            # Part of a message may be delivered until the transport has closed the connection.
            cutting.wait_until_gone(names, transports.limits.ending)
            allowed = (whole, [b"held"], message("after", [8]), message("first", [10]))
            for event in worker1.take_messages():
                if event.parts not in allowed and event.parts not in worker1.may_get:
                    raise worker0.deviation(
                        "send(1, ...) whose connection is cut",
                        "worker1's inbox gets the whole message or nothing",
                        f"it gets {event}",
                    )

    def test_peer_that_closes_is_lost(self, transports: Workers) -> None:
        """When a peer closes its transport with a request in flight, the sender's inbox gets `lost`."""
        with transports() as (worker0, worker1):
            worker0.send(1, message("request", [10]))
            worker1.expect(worker0, message("request", [10]))
            worker1.may_lose.add(0)
            worker1.close(0)
            worker0.expect_lost(1, "worker1.close(0), with a request of worker0 that has no answer")

    def test_answer_before_loss(self, transports: Workers) -> None:
        """Messages that a peer sent before it closed arrive, and arrive before its loss is reported."""
        for size in (10, 300_000):
            with transports() as (worker0, worker1):
                worker0.send(1, message("request", [10]))
                worker1.expect(worker0, message("request", [10]))
                worker0.may_lose.add(1)
                worker1.may_lose.add(0)
                worker1.send(0, message("reply", [size]), reply=True)
                worker1.close(5.0)
                worker0.expect(worker1, message("reply", [size]), reply=True)
                worker0.expect_lost(1, "worker1.close(5)")

    def test_request_to_a_closed_peer(self, transports: Workers) -> None:
        """A request to a peer that has closed its transport fails: `send` raises, or the peer is lost.

        If it were dropped silently, its caller would wait until the timeout.
        """
        for talk in (False, True):
            with transports() as (worker0, worker1):
                if talk:
                    worker0.send(1, message("request", [10]))
                    worker1.expect(worker0, message("request", [10]))
                worker1.may_lose.add(0)
                worker0.may_lose.add(1)
                worker1.close(0)
                if talk:
                    worker0.expect_lost(1, "worker1.close(0), with a request that has no answer")
                losses = len(worker0.losses(1))
                if worker0.try_send(1, message("late", [10])) is None:
                    worker0.expect_another_loss(
                        1, losses, "send(1, ...) after worker1 has closed its transport"
                    )

    def test_reply_to_a_closed_caller(self, transports: Workers) -> None:
        """Sending a reply to a caller that has closed its transport returns or raises, and does not hang.

        Other peers are served meanwhile.
        """
        with transports(3) as (worker0, worker1, worker2):
            worker0.send(1, message("request", [10]))
            worker1.expect(worker0, message("request", [10]))
            worker1.may_lose.add(0)
            worker2.may_lose.add(0)
            worker0.may_lose.add(1)
            worker0.close(0)
            for _ in range(3):
                worker1.try_send(0, message("reply", [100_000]), reply=True)
            worker1.send(2, message("request", [10]))
            worker2.expect(worker1, message("request", [10]))

    def test_forget_ends_connections(self, transports: Workers) -> None:
        """`forget` ends the connections to a peer, and none of the peer's requests is silently ignored.

        The peer's inbox gets `lost` at once, or when the peer sends the next message.
        """
        for first in (0, 1):
            with transports() as workers:
                worker0, worker1 = workers[first], workers[1 - first]
                worker1.send(worker0.id, message("request", [10]))
                worker0.expect(worker1, message("request", [10]))
                worker0.may_lose.add(worker1.id)
                worker0.forget(worker1.id)
                losses = len(worker1.losses(worker0.id))
                worker1.may_lose.add(worker0.id)
                if worker1.try_send(worker0.id, message("late", [10])) is None and not losses:
                    worker1.expect_another_loss(
                        worker0.id, 0, f"send(...) after {worker0.name}.forget({worker1.id})"
                    )
                worker0.take_messages()

    def test_forgotten_peer_is_learned_again(self, transports: Workers) -> None:
        """A peer that was forgotten can be learned again, and then both can send."""
        with transports() as (worker0, worker1):
            worker0.send(1, message("request", [10]))
            worker1.expect(worker0, message("request", [10]))
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker0.forget(1)
            worker1.forget(0)
            worker0.learn(worker1)
            worker1.learn(worker0)
            send_until_it_arrives(worker0, worker1, message("again", [10]))
            send_until_it_arrives(worker1, worker0, message("again", [11]))

    def test_reject_ends_connections(self, transports: Workers) -> None:
        """`reject` ends the connections to a peer. The peer stays known and may connect again."""
        for first in (0, 1):
            with transports() as workers:
                worker0, worker1 = workers[first], workers[1 - first]
                worker1.send(worker0.id, message("request", [10]))
                worker0.expect(worker1, message("request", [10]))
                worker0.may_lose.add(worker1.id)
                worker0.reject(worker1.id)
                worker1.expect_lost(
                    worker0.id, f"{worker0.name}.reject(...), with a request that has no answer"
                )
                worker1.expect_found(
                    worker0.id, f"{worker0.name}.reject(...): the peer may connect again"
                )
                send_until_it_arrives(worker1, worker0, message("again", [10]))
                send_until_it_arrives(worker0, worker1, message("again", [11]))


def _cut(
    worker0: Worker, worker1: Worker, cutting: resources.Cutting, keep: Iterable[str] = ()
) -> None:
    """Send a request from ``worker0`` to ``worker1``, and cut the connections between them."""
    send_until_it_arrives(worker0, worker1, message("request", [10]))
    names = cutting.connections() - cutting.before - set(keep)
    if not names:
        pytest.skip(NO_CONNECTION)
    worker1.may_lose.add(worker0.id)
    cutting.cut(names)


def send_until_it_arrives(sender: Worker, receiver: Worker, parts: list[bytes]) -> None:
    """Send a message until it arrives: after a cut, the first ones may be lost too."""
    call = f"send({receiver.id}, ...) after the peer was lost and found"
    error: str | None = None
    for attempt in range(5):
        tried = parts if attempt == 0 else [*parts, b"attempt %d" % attempt]
        before = len(sender.losses(receiver.id))

        def lost(before: int = before) -> bool:
            return len(sender.losses(receiver.id)) > before

        receiver.may_get.append(tried)  # it may leave just before the connection is lost
        error = sender.try_send(receiver.id, tried)
        if error is None and receiver.got(sender, tried, lost):
            return
        if error is None and not lost():
            sender.limits.note_passed()
            raise sender.deviation(
                call,
                f"{receiver.name}'s inbox gets the message, or {sender.name}'s gets a loss",
                "neither",
            )
        sender.may_lose.add(receiver.id)
        sender.wait_until_found(receiver.id)
    raise sender.deviation(
        call,
        f"{receiver.name}'s inbox gets the message: both workers live",
        f"it does not, five times in a row; the last error: {error or 'a loss'}",
    )
