"""Errors: calls of each method that cannot work, and data from programs outside the group."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rpc_backends_testing.deviations import DeviationError
from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import message
from rpc_backends_testing.transports.losses import send_until_it_arrives
from rpc_backends_testing.transports.workers import Worker, Workers

#: Texts that are no transport's address.
NO_ADDRESSES = ("", "no address of any worker \N{SNOWMAN}\0")
_UNKNOWN = 7
#: How many seconds a transport may wait for a new connection to identify itself, while others wait.
_HANDSHAKE = 15.0


class ErrorTests:
    """Tests of calls that must fail, and of calls that must not fail."""

    def test_send_to_unknown_peer(self, transports: Workers) -> None:
        """`send` to a worker whose address was never learned raises an error."""
        with transports() as (worker0, worker1):
            for reply in (False, True):
                if worker0.try_send(_UNKNOWN, message("lost", [4]), reply=reply) is None:
                    raise worker0.deviation(
                        f"send({_UNKNOWN}, [4 B], reply={reply})",
                        f"an error: the address of worker {_UNKNOWN} was never learned",
                        "none",
                    )
            worker0.may_lose.add(_UNKNOWN)
            _still_works(worker0, worker1)

    def test_send_to_forgotten_unknown_peer(self, transports: Workers) -> None:
        """`forget` and `reject` ignore a worker that is not known.

        A known worker without connections may be rejected, too. It may be reported as lost, and is then
        found again.
        """
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker0.forget(_UNKNOWN)
            worker0.reject(_UNKNOWN)
            worker0.reject(1)
            send_until_it_arrives(worker0, worker1, message("again", [10]))
            _still_works(worker0, worker1)
            worker0.reject(_UNKNOWN)
            worker0.forget(_UNKNOWN)
            worker0.forget(_UNKNOWN)
            _still_works(worker0, worker1)

    def test_forget_twice(self, transports: Workers, cutting: resources.Cutting) -> None:
        """A peer can be forgotten twice, and also after it has closed its transport."""
        with transports(3) as (worker0, worker1, worker2):
            worker0.may_lose.update((1, 2))
            worker1.may_lose.add(0)
            _still_works(worker0, worker1)
            worker0.forget(1)
            worker0.forget(1)
            worker1.close(0)
            worker0.forget(1)
            _still_works(worker0, worker2)
        with transports() as (worker0, worker1):
            worker0.may_lose.add(1)
            worker1.may_lose.add(0)
            worker0.stop_receiving(worker1)  # so that the transport cannot notice the cut yet
            cutting.cut(cutting.connections() - cutting.before)
            worker0.forget(1)
            worker0.inbox.unblock()
            worker0.take_messages()

    @pytest.mark.parametrize("address", NO_ADDRESSES, ids=["empty", "garbage"])
    def test_learn_invalid_address(self, transports: Workers, address: str) -> None:
        """`learn` raises an error for a text that is no address, so that the start of the worker fails.

        Otherwise the worker's calls would fail one by one, with errors that say less.
        """
        with transports() as (worker0, worker1):
            text = f"learn(5, 'worker5', {address!r})"
            try:
                worker0.limits.call(
                    worker0.called(text), lambda: worker0.transport.learn(5, "worker5", address)
                )
            except DeviationError:
                raise
            except Exception:
                _still_works(worker0, worker1)
                return
            raise worker0.deviation(text, "an error: this is no address", "none")

    def test_learn_address_of_a_closed_peer(self, transports: Workers) -> None:
        """`learn` accepts the address of a worker that has just ended: it need not connect.

        A request to that worker fails.
        """
        with transports(2, learn=False) as (worker0, worker1):
            worker1.close(0)
            worker0.may_lose.add(1)
            with contextlib.suppress(DeviationError):
                worker0.learn(worker1)
            if worker0.try_send(1, message("lost", [4])) is None:
                worker0.expect_another_loss(1, 0, "send(1, [4 B]), and worker1 has ended")

    def test_send_after_close(self, transports: Workers) -> None:
        """`send` after `close` raises an error, opens nothing, and sends nothing."""
        with transports() as (worker0, worker1):
            worker1.may_lose.add(0)
            _still_works(worker0, worker1)
            worker0.close(0)
            remainder = resources.Remainder()
            for reply in (False, True):
                if worker0.try_send(1, message("late", [4]), reply=reply) is None:
                    raise worker0.deviation(
                        f"send(1, [4 B], reply={reply}) after close()", "an error", "none"
                    )
            left = remainder.now(1.0)
            if left != "nothing":
                raise worker0.deviation("send(1, [4 B]) after close()", "nothing is opened", left)

    def test_methods_after_close(self, transports: Workers) -> None:
        """`forget`, `reject` and `metrics` raise no error after `close`: other threads may call them."""
        with transports() as (worker0, worker1):
            worker1.may_lose.add(0)
            _still_works(worker0, worker1)
            worker0.close(0)
            worker0.forget(1)
            worker0.reject(1)
            worker0.metrics()

    def test_metrics(self, transports: Workers) -> None:
        """`metrics` returns a dict of str to str at any time after `listen`, without waiting."""
        with transports() as (worker0, worker1):
            _metrics(worker0)
            _still_works(worker0, worker1)
            _metrics(worker0)
            worker1.may_lose.add(0)
            worker0.close(0)
            _metrics(worker0)

    def test_address(self, transports: Workers) -> None:
        """`listen` returns a text that is different for each worker."""
        with transports(3) as workers:
            addresses = [worker.address for worker in workers]
            if len(set(addresses)) < len(addresses) or not all(addresses):
                raise workers[0].deviation(
                    "listen(...) of three workers", "three addresses", repr(addresses)
                )

    def test_strangers(self, transports: Workers) -> None:
        """Connections from other programs do not disturb a worker: silent ones, short ones, and garbage.

        Port scanners and monitoring make such connections.
        """
        before = transports.listening()
        with transports() as (worker0, worker1):
            addresses = [place for place in transports.listening() if place not in before]
            if not addresses:
                pytest.skip("the transport listens at no stream socket")
            with contextlib.ExitStack() as strangers:
                for address in addresses:
                    for data in (b"", b"\x05", b"\xff" * 400, b"GET / HTTP/1.1\r\n\r\n", None):
                        with contextlib.suppress(OSError):
                            connection = strangers.enter_context(resources.connect(address))
                            if data is not None:
                                connection.sendall(data)
                                connection.close()
                with transports.limits.at_least(_HANDSHAKE):
                    _still_works(worker0, worker1)
                    _still_works(worker1, worker0)


def _still_works(sender: Worker, receiver: Worker) -> None:
    """See that a request arrives, and its reply."""
    sender.send(receiver.id, message("request", [10, 0, 5000]))
    receiver.expect(sender, message("request", [10, 0, 5000]))
    receiver.send(sender.id, message("reply", [10]), reply=True)
    sender.expect(receiver, message("reply", [10]), reply=True)


def _metrics(worker: Worker) -> None:
    metrics: Any = worker.metrics()
    if type(metrics) is not dict or not all(
        type(text) is str for pair in metrics.items() for text in pair
    ):
        raise worker.deviation("metrics()", "a dict of str to str", repr(metrics))
