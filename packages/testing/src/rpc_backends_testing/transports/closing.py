"""Closing: sent messages leave, calls end, and nothing stays open."""

from __future__ import annotations

import contextlib

import pytest

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import message
from rpc_backends_testing.transports.losses import send_until_it_arrives
from rpc_backends_testing.transports.workers import CLOSING, Sending, Worker, Workers

_MUCH = [1 << 20] * 32


class ClosingTests:
    """Tests of ``close``."""

    def test_close_flushes(self, transports: Workers) -> None:
        """`close(linger)` waits until sent messages have left: all arrive, within `linger` seconds.

        Shut down the writing side, and wait until the peer has closed or `linger` is over.
        """
        for sizes, count in (([4], 1), ([100, 0, 5000], 300), ([1 << 20], 8)):
            with transports() as (worker0, worker1):
                worker1.may_lose.add(0)
                sent = [message(place, sizes) for place in range(count)]
                worker0.send_all(1, sent)
                worker0.close(20.0, seconds=10.0)
                worker1.expect_all(worker0, sent)

    def test_close_flushes_replies(self, transports: Workers) -> None:
        """`close(linger)` waits until sent replies have left, too."""
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker0.send(1, message("request", [4]))
            worker1.expect(worker0, message("request", [4]))
            sent = [message(place, [200_000]) for place in range(20)]
            worker1.send_all(0, sent, reply=True)
            worker1.close(20.0, seconds=10.0)
            worker0.expect_all(worker1, sent, reply=True)

    def test_close_does_not_wait_for_nothing(self, transports: Workers) -> None:
        """`close(linger)` returns as soon as all messages have left, before `linger` is over."""
        with transports() as (worker0, worker1):
            worker0.send(1, message("request", [4]))
            worker1.expect(worker0, message("request", [4]))
            worker1.send(0, message("reply", [4]), reply=True)
            worker0.expect(worker1, message("reply", [4]), reply=True)
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            linger = 30.0 * max(1.0, transports.limits.timeout_factor)  # longer than the limit
            worker0.close(linger, seconds=CLOSING)

    def test_close_waits_for_linger_at_most(self, transports: Workers) -> None:
        """`close(linger)` returns after `linger` seconds even if the peer takes no messages.

        It ends a `send` that waits for that peer.
        """
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker1.stop_receiving(worker0)
            sending = worker0.start_sending(1, [message("much", _MUCH)] * 3)
            sending.wait(0.3)
            worker0.close(0.5)
            if not sending.wait(transports.limits.seconds):
                transports.limits.note_passed()
                raise worker0.deviation(
                    "close(0.5) while send() waits for worker1", "send() ends", "it still waits"
                )
            worker1.inbox.unblock()
            _settle(worker1)
            worker1.take_messages()

    def test_close_twice(self, transports: Workers) -> None:
        """A second `close` does nothing."""
        with transports() as (worker0, worker1):
            worker1.may_lose.add(0)
            worker0.send(1, message("request", [4]))
            worker1.expect(worker0, message("request", [4]))
            worker0.close(0)
            worker0.close(0)
            worker0.close(1.0)

    def test_close_before_listen(self, transports: Workers) -> None:
        """A transport that never listened can be closed, as after a failed start of its worker."""
        remainder = resources.Remainder()
        for linger in (0.0, 1.0):
            worker = transports.make(0)
            worker.close(linger)
            del worker
        remainder.check("close(0) of a transport that has not listened", transports.limits)

    def test_close_waits_for_its_threads(self, transports: Workers) -> None:
        """`close(0)` returns when the transport's threads have ended, also one that calls the inbox.

        The agent that owns the inbox is destroyed after `close`.
        """
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker1.stop_receiving(worker0)
            closing = Sending(worker1.called("close(0)"), lambda: worker1.close(0))
            returned = closing.wait(0.3)
            worker1.inbox.unblock()
            if returned and closing.error is None:
                raise worker1.deviation(
                    "close(0) while inbox.deliver(0, ...) runs",
                    "returns when the thread that calls the inbox has ended",
                    "returns before",
                )
            closing.wait(CLOSING * transports.limits.timeout_factor)
            if closing.error is not None:
                raise closing.error
            _settle(worker1)
            worker1.take_messages()

    def test_close_with_a_silent_stranger(self, transports: Workers) -> None:
        """`close(0)` ends the thread that waits for a new connection to identify itself."""
        before, remainder = transports.listening(), resources.Remainder()
        with transports(1) as (worker0,), contextlib.ExitStack() as strangers:
            addresses = [place for place in resources.listening() if place not in before]
            if not addresses:
                pytest.skip("the transport listens at no stream socket")
            strangers.enter_context(resources.connect(addresses[0]))
            _settle(worker0)
            worker0.close(0)
            # The stranger's socket is left.
            left = remainder.now(transports.limits.ending, only="thread")
            if "thread" in left:
                transports.limits.note_passed()
                raise worker0.deviation(
                    "close(0) while a stranger is connected", "no thread is left", left
                )

    def test_close_without_peers(self, transports: Workers) -> None:
        """A transport that has sent nothing can be closed, with peers and without."""
        remainder = resources.Remainder()
        with transports(1):
            pass
        with transports(2):
            pass
        remainder.check("close(0) of a transport that has sent nothing", transports.limits)

    def test_nobody_listens_after_close(self, transports: Workers) -> None:
        """After `close` the address of the worker is free: nobody can connect to it."""
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            before = transports.listening()
            worker1.close(0)
            left = transports.listening()
            if before and len(left) >= len(before):
                raise worker1.deviation(
                    "close(0)", "stops listening", f"something listens at {left}"
                )
            worker0.try_send(1, message("late", [4]))
            if worker1.inbox.wait_for(lambda events: any(e.kind == "deliver" for e in events), 0.2):
                raise worker1.deviation(
                    "close(0)", "no message is received after it", "a message was received"
                )

    @pytest.mark.parametrize(
        "after", ["messages", "a cut", "forget", "reject", "the peer's close", "failed sends"]
    )
    def test_nothing_is_left(
        self, transports: Workers, cutting: resources.Cutting, after: str
    ) -> None:
        """When `close` has returned, no socket, file or thread of the transport is left.

        Transports often fail to close connections that have already ended in another way, so this
        tests each of these ways.
        """
        remainder = resources.Remainder()
        with transports(3) as (worker0, worker1, worker2):
            for worker in (worker0, worker1, worker2):
                worker.may_lose.update((0, 1, 2))
            _talk(worker0, worker1)
            _talk(worker2, worker0)
            if after == "a cut":
                for _ in range(3):
                    cutting.cut(cutting.connections() - cutting.before)
                    for sender, receiver in (
                        (worker0, worker1),
                        (worker1, worker0),
                        (worker0, worker2),
                    ):
                        sender.try_send(receiver.id, message("again", [10]))
            elif after == "forget":
                worker0.forget(1)
                worker1.forget(0)
            elif after == "reject":
                worker0.reject(1)
                worker1.try_send(0, message("again", [10]))
            elif after == "the peer's close":
                worker1.close(0)
                worker2.close(0)
                worker0.try_send(1, message("again", [10]))
            elif after == "failed sends":
                worker1.close(0)
                for _ in range(5):
                    worker0.try_send(1, message("again", [10]))
                worker0.try_send(7, message("unknown", [10]))
            _settle(worker0)
            for worker in (worker0, worker1, worker2):
                worker.take_messages()
        remainder.check(f"close(0) after {after}", transports.limits)

    def test_nothing_is_left_when_the_peer_hangs(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """`close(0)` closes all connections, even if the peer takes no messages and closes nothing."""
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker1.stop_receiving(worker0)
            sending = worker0.start_sending(1, [message("much", _MUCH)] * 3)
            sending.wait(0.3)
            both_ends = cutting.count_settled()  # a transport may open more for large messages
            worker0.close(0)
            cutting.expect_at_most(
                both_ends // 2,
                worker0.called("close(0) while worker1 takes no messages"),
                transports.limits,
            )
            worker1.inbox.unblock()
            sending.wait(transports.limits.seconds)
            _settle(worker1)
            worker1.take_messages()

    def test_connections_that_ended_are_closed(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """A transport closes ended connections and their threads while it still runs.

        A worker that runs for days meets thousands of them.
        """
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            _talk(worker0, worker1)
            remainder = resources.Remainder()
            for _ in range(4):
                cutting.cut(cutting.connections() - cutting.before)
                _talk_again(worker0, worker1)
            left = remainder.now(2 * transports.limits.seconds)
            if left != "nothing":
                raise worker0.deviation(
                    "(four times, the connections to worker1 are cut and made again)",
                    "no more sockets, files and threads than before",
                    f"{left} more",
                )


def _talk(first: Worker, second: Worker) -> None:
    """Exchange requests and replies in both directions."""
    for caller, callee in ((first, second), (second, first)):
        caller.send(callee.id, message("request", [10]))
        callee.expect(caller, message("request", [10]))
        callee.send(caller.id, message("reply", [2000]), reply=True)
        caller.expect(callee, message("reply", [2000]), reply=True)


def _talk_again(first: Worker, second: Worker) -> None:
    """Send requests in both directions until they arrive: connections have just been cut."""
    send_until_it_arrives(first, second, message("again", [10]))
    send_until_it_arrives(second, first, message("again", [11]))


def _settle(worker: Worker) -> None:
    """Wait a moment for events that the test does not expect."""
    worker.inbox.wait_for(lambda _: False, 0.1)
