"""Replies: on the connection of their request, mixed with requests, in both directions."""

from __future__ import annotations

import pytest

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import message, shown
from rpc_backends_testing.transports.workers import Workers

NO_CONNECTION = (
    "the transport has no stream socket in this process, so no connection of it can be cut; override "
    "connections() and cut() of TransportContract"
)


class ReplyTests:
    """Tests of ``send(..., reply=True)``."""

    def test_reply(self, transports: Workers) -> None:
        """A worker that has received a request can send replies to it.

        A reply has `reply=True`. The transport sends it on the connection of the request.
        """
        with transports() as workers:
            for caller, callee in (workers, workers[::-1]):
                request = message("request", [40])
                caller.send(callee.id, request)
                callee.expect(caller, request)
                for size in (0, 5, 70_000):
                    reply = message("reply", [size, 3])
                    callee.send(caller.id, reply, reply=True)
                    caller.expect(callee, reply, reply=True)

    def test_reply_before_the_callee_calls(self, transports: Workers) -> None:
        """A reply arrives although the callee has never sent a request to the caller."""
        with transports() as (worker0, worker1):
            for place in range(5):
                worker0.send(1, message(("request", place), [10, 100]))
                worker1.expect(worker0, message(("request", place), [10, 100]))
                worker1.send(0, message(("reply", place), [100, 10]), reply=True)
                worker0.expect(worker1, message(("reply", place), [100, 10]), reply=True)

    def test_reply_uses_the_connection_of_its_request(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """A reply goes back on the connection of its request, even if there is another one.

        Each worker has sent a request to the other. The connection of worker 1's request is cut; its
        reply to worker 0 must arrive, because the connection of worker 0's request is intact.
        """
        with transports() as (worker0, worker1):
            before = cutting.connections()
            worker0.send(1, message("request", [10]))
            worker1.expect(worker0, message("request", [10]))
            of_zero = cutting.connections() - before
            worker1.send(0, message("request", [10]))
            worker0.expect(worker1, message("request", [10]))
            of_one = cutting.connections() - before - of_zero
            if not of_zero:
                pytest.skip(NO_CONNECTION)
            if not of_one:
                return  # one connection carries both directions
            worker1.may_lose.add(0)
            worker0.may_lose.add(1)
            cutting.cut(of_one)
            worker1.expect_lost(0, "(the connection of worker1's requests to worker0 is cut)")
            reply = message("reply", [20])
            text = f"send(0, {shown(reply)}, reply=True)"
            error = worker1.try_send(0, reply, reply=True)
            if error is not None:
                raise worker1.deviation(
                    text, "no error: the connection on which the request came is intact", error
                )
            worker0.expect(worker1, reply, reply=True)
            if any(event.kind == "lost" for event in worker0.inbox.events):
                raise worker0.deviation(
                    "(the connection of worker1's requests is cut)",
                    "worker0's inbox gets no loss: the connection of its own requests is intact",
                    "it gets lost(1, ...)",
                )

    def test_no_reply_on_another_connection(
        self, transports: Workers, cutting: resources.Cutting
    ) -> None:
        """A reply arrives on no connection other than that of its request.

        The connection of the request is cut, another one is intact. The caller's inbox got the loss, so
        the reply must not arrive: `send` raises an error, or a transport in C++ reports `kUnsent`.
        """
        with transports() as (worker0, worker1):
            before = cutting.connections()
            worker1.send(0, message("request", [10]))
            worker0.expect(worker1, message("request", [10]))
            of_one = cutting.connections() - before
            worker0.send(1, message("request", [10]))
            worker1.expect(worker0, message("request", [10]))
            of_zero = cutting.connections() - before - of_one
            if not of_one:
                pytest.skip(NO_CONNECTION)
            if not of_zero:
                return  # one connection carries both directions
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            cutting.cut(of_zero)
            worker0.expect_lost(1, "(the connection of worker0's requests to worker1 is cut)")
            # After this wait the callee, too, has noticed the cut.
            cutting.wait_until_gone(of_zero, transports.limits.seconds)
            worker1.try_send(0, message("reply", [20]), reply=True)
            # If the reply took the intact connection, it would arrive before this later message.
            worker1.send(0, message("later", [30]))
            worker0.expect(worker1, message("later", [30]))
