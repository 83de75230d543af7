"""Threads: many callers and many peers at once, and peers that take no messages."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from functools import partial

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import message
from rpc_backends_testing.transports.workers import Workers

_MUCH = [1 << 20] * 32


class ThreadTests:
    """Tests of concurrency, and of a peer that does not receive."""

    def test_all_at_once(self, transports: Workers) -> None:
        """Four workers send requests and replies to each other at the same time. All arrive, in order."""
        with transports(4) as workers:
            pairs = list(itertools.permutations(workers, 2))
            for caller, callee in pairs:
                caller.send(callee.id, message("first", [6]))
                callee.expect(caller, message("first", [6]))
            sent = {
                (sender.id, receiver.id): [
                    message((sender.id, place), [8, place]) for place in range(60)
                ]
                for sender, receiver in pairs
            }
            at_once(
                partial(
                    sender.send_all,
                    receiver.id,
                    sent[sender.id, receiver.id],
                    sender.id > receiver.id,
                )
                for sender, receiver in pairs
            )
            for sender, receiver in pairs:
                for parts in sent[sender.id, receiver.id]:
                    if receiver.receive(sender.id) != parts:
                        raise sender.deviation(
                            f"send({receiver.id}, ...) from a thread for each peer",
                            "each message arrives as it was sent, in order",
                            "another one arrives",
                        )

    def test_first_messages_cross(self, transports: Workers) -> None:
        """If two workers connect to each other at the same time, both get their messages.

        There are then two connections. A transport must not close one of them as superfluous while a
        message is on its way there.
        """
        for round_ in range(10):
            with transports() as workers:
                at_once(
                    partial(worker.send, 1 - worker.id, message((round_, worker.id), [9, 2000]))
                    for worker in workers
                )
                for sender, receiver in (workers, workers[::-1]):
                    receiver.expect(sender, message((round_, sender.id), [9, 2000]))

    def test_peer_that_receives_nothing(self, transports: Workers) -> None:
        """A peer that takes no messages delays only the messages to itself.

        `send` of a transport in C++ returns without waiting. Once the peer takes messages, all arrive.
        """
        with transports(3) as (worker0, worker1, worker2):
            worker1.stop_receiving(worker0)
            much = [message(place, _MUCH) for place in range(2)]
            sending = worker0.start_sending(1, much)
            if worker0.native and not sending.wait(transports.limits.seconds):
                raise worker0.deviation(
                    "send(1, 32 MiB) while worker1 takes no messages",
                    "returns without waiting for the peer: torch holds locks meanwhile",
                    "it waits",
                )
            sending.wait(0.2)
            for place in range(20):
                worker0.send(2, message(place, [10, 5000]))
                worker2.expect(worker0, message(place, [10, 5000]))
                worker2.send(0, message(place, [7]), reply=True)
                worker0.expect(worker2, message(place, [7]), reply=True)
            worker1.inbox.unblock()
            worker1.expect(worker0, [b"held"])
            worker1.expect_all(worker0, much)
            if not sending.wait(transports.limits.seconds):
                raise worker0.deviation(
                    sending.text, "returns once worker1 takes messages", "it waits"
                )

    def test_metrics_and_forget_while_sending(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """`metrics` and `forget` return while a `send` waits for its peer. `forget` ends that `send`."""
        with transports(3) as (worker0, worker1, worker2):
            worker0.may_lose.update((1, 2))
            worker1.may_lose.add(0)
            worker2.may_lose.add(0)
            worker0.send(2, message("request", [4]))
            worker2.expect(worker0, message("request", [4]))
            of_two = cutting.connections() - cutting.before
            worker1.stop_receiving(worker0)
            sending = worker0.start_sending(1, [message("much", _MUCH)] * 3)
            sending.wait(0.2)
            worker0.metrics()
            worker0.forget(2)
            cutting.wait_until_gone(of_two, transports.limits.seconds)
            both_ends = cutting.count_settled()  # a transport may open more for large messages
            worker0.forget(1)
            cutting.expect_at_most(
                both_ends // 2,
                worker0.called("forget(1) while worker1 takes no messages"),
                transports.limits,
            )
            if not sending.wait(transports.limits.seconds):
                transports.limits.note_passed()
                raise worker0.deviation(
                    "forget(1) while send(1, ...) waits for worker1",
                    "send() ends",
                    "it still waits",
                )
            worker1.inbox.unblock()
            worker1.inbox.wait_for(lambda _: False, 0.1)
            worker1.take_messages()

    def test_close_while_others_send(self, transports: Workers) -> None:
        """`close` returns in time while threads send. A later `send` raises an error."""
        with transports(3) as (worker0, worker1, worker2):
            for worker in (worker0, worker1, worker2):
                worker.may_lose.update((0, 1, 2))
            over = threading.Event()
            errors: list[str | None] = []

            def send(peer: int) -> None:
                while not over.is_set():
                    error = worker0.try_send(peer, message("request", [100]))
                    if error is not None:
                        errors.append(error)
                        return

            threads = [threading.Thread(target=send, args=(peer,), daemon=True) for peer in (1, 2)]
            for thread in threads:
                thread.start()
            try:
                worker1.inbox.wait_for(lambda events: len(events) > 5, transports.limits.seconds)
                worker0.close(0)
                for thread in threads:
                    thread.join(transports.limits.seconds + 1.0)
            finally:
                over.set()
            if len(errors) < len(threads):
                raise worker0.deviation("send(1, ...) after close()", "an error", "none")
            for worker in (worker1, worker2):
                worker.inbox.wait_for(lambda _: False, 0.1)
                worker.take_messages()


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Run each call on a thread of its own, at the same time.

    :raises Exception: what the first that failed has raised.
    """
    errors: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # each call has a time limit
    if errors:
        raise errors[0]
