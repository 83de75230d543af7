"""The workers of a test: each is a transport under test with an inbox, without agent and process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from rpc_backends_testing.deviations import DeviationError, deviate
from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.content import Parts, difference, is_large, shown
from rpc_backends_testing.transports.inbox import Event, Inbox
from rpc_backends_testing.transports.limits import Limits
from rpc_backends_testing.transports.second_process import RemoteTransport, SecondProcess, in_python

MakeTransport = Callable[[int], Any]

#: The default ``linger`` of tests: how many seconds close() may wait for messages to leave.
LINGER = 2.0
#: How many seconds close() may take beyond ``linger``, to end its threads.
CLOSING = 10.0


class Worker:
    """One worker: calls the methods of its transport as the agent does, with time limits.

    An error of a method that should not fail becomes a :class:`DeviationError` that names the call.

    :ivar id: its worker id.
    :ivar may_lose: the peers whose loss is no failure of the test.
    :ivar may_get: messages that may arrive or not, because a loss came between.
    """

    def __init__(self, worker_id: int, transport: Any, limits: Limits) -> None:
        self.id = worker_id
        self.name = f"worker{worker_id}"
        self.inbox = Inbox()
        self.address = ""
        self.may_lose: set[int] = set()
        self.may_get: list[list[bytes]] = []
        self.transport = transport
        if isinstance(transport, RemoteTransport):
            self.native = transport.native
        else:
            self.native = hasattr(transport, "__rpc_transport__")
            self.transport = in_python(transport) if self.native else transport
        self.limits = limits
        self.closed = False
        self._takes_all = False
        self._sending: dict[int, threading.Lock] = {}

    # --- the methods of the transport ----------------------------------------------------------------

    def listen(self) -> str:
        """Start to listen; return the address, which must be a text."""
        address = self.do(
            f"listen({self.id}, {self.name!r}, inbox)",
            lambda: self.transport.listen(self.id, self.name, self.inbox),
        )
        if not isinstance(address, str):
            raise self.deviation(f"listen({self.id}, ...)", "an address, a str", repr(address))
        self.address = address
        return address

    def learn(self, *others: Worker) -> None:
        """Learn the addresses of other workers."""
        for peer in others:
            self.do(
                f"learn({peer.id}, {peer.name!r}, ITS ADDRESS)",
                partial(self.transport.learn, peer.id, peer.name, peer.address),
            )

    def send(self, peer: int, parts: Sequence[bytes], *, reply: bool = False) -> None:
        """Send a message; the transport must not raise an error."""
        self.do(_send(peer, parts, reply), lambda: self._send(peer, parts, reply))

    def send_all(self, peer: int, messages: Iterable[Sequence[bytes]], reply: bool = False) -> None:
        """Send messages one after the other; the transport must not raise an error."""

        def send() -> None:
            for parts in messages:
                self._send(peer, parts, reply)

        self.do(f"send({peer}, ..., reply={reply}) of several messages", send)

    def try_send(self, peer: int, parts: Sequence[bytes], *, reply: bool = False) -> str | None:
        """Send a message that need not arrive; return the error as text, or None."""
        try:
            self.limits.call(
                self.called(_send(peer, parts, reply)), lambda: self._send(peer, parts, reply)
            )
        except DeviationError:
            raise  # it did not return
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def stop_receiving(self, sender: Worker) -> None:
        """Take no more messages: after the next one of ``sender``, the transport has to wait."""
        self.inbox.block()
        sender.send(self.id, [b"held"])
        self.inbox.wait_until_holding(self.limits.seconds)

    def start_sending(self, peer: int, messages: Sequence[Sequence[bytes]]) -> Sending:
        """Start to send messages on a thread of their own."""

        def send() -> None:
            for parts in messages:
                self._send(peer, parts, False)

        return Sending(self.called(_send(peer, messages[0], False)), send)

    def forget(self, peer: int) -> None:
        """Drop the connections to a peer."""
        self.do(f"forget({peer})", lambda: self.transport.forget(peer))

    def reject(self, peer: int, reason: str = "it has sent an invalid message") -> None:
        """Close the connections to a peer."""
        self.do(f"reject({peer}, {reason!r})", lambda: self.transport.reject(peer, reason))

    def metrics(self) -> Any:
        """Return the metrics."""
        return self.do("metrics()", self.transport.metrics)

    def close(self, linger: float = 0.0, seconds: float | None = None) -> None:
        """Close the transport."""
        self.closed = True
        limit = linger + CLOSING if seconds is None else seconds
        self.do(f"close({linger:g})", lambda: self.transport.close(linger), limit)

    def do(self, text: str, function: Callable[[], Any], seconds: float | None = None) -> Any:
        """Call a method that must not raise an error and must return in time."""
        try:
            return self.limits.call(self.called(text), function, seconds)
        except DeviationError:
            raise
        except Exception as error:
            raise self.deviation(text, "no error", f"{type(error).__name__}: {error}") from error

    def _send(self, peer: int, parts: Sequence[bytes], reply: bool) -> None:
        # The agent has one thread for each peer of a transport in Python.
        lock = threading.Lock() if self.native else self._sending.setdefault(peer, threading.Lock())
        with lock:
            self.transport.send(peer, [memoryview(part) for part in parts], reply)

    # --- what arrives --------------------------------------------------------------------------------

    def receive(self, peer: int, why: str = "") -> Parts:
        """Return the parts of the next message from ``peer``."""
        call = why or f"{_name(peer)}.send({self.id}, ...)"
        event = self._take(
            call, "deliver", lambda e: e.peer == peer and e.kind in ("deliver", "lost"), peer
        )
        if event.kind != "deliver":
            raise deviate(call, f"{self._inbox()} gets deliver({peer}, ...)", f"it gets {event}")
        return event.parts

    def expect(self, sender: Worker, parts: Sequence[bytes], *, reply: bool = False) -> None:
        """Check that the next message from ``sender`` has exactly these parts."""
        call = sender.called(_send(self.id, parts, reply))
        event = self._take(
            call,
            f"deliver({sender.id}, {shown(parts)})",
            lambda e: e.kind == "deliver" or (e.kind == "lost" and e.peer == sender.id),
            sender.id,
        )
        wanted = f"{self._inbox()} gets deliver({sender.id}, {shown(parts)}), as it was sent"
        if event.kind != "deliver" or event.peer != sender.id:
            raise deviate(call, wanted, f"it gets {event}")
        differs = difference(list(parts), event.parts)
        if differs is not None:
            raise deviate(call, wanted, f"it gets deliver({sender.id}, {differs})")

    def expect_all(
        self, sender: Worker, messages: Sequence[Sequence[bytes]], *, reply: bool = False
    ) -> None:
        """Check that the next messages are these: small ones in order, large ones at any time."""
        awaited = list(messages)
        while awaited:
            small = next((parts for parts in awaited if not is_large(parts)), None)
            large = [parts for parts in awaited if is_large(parts)]
            if small is not None and not large:
                self.expect(sender, small, reply=reply)
                awaited.remove(small)
                continue
            got = self.receive(sender.id, sender.called(_send(self.id, awaited[0], reply)))
            match = next((parts for parts in [small, *large] if parts == got), None)
            if match is None:
                raise deviate(
                    sender.called(_send(self.id, awaited[0], reply)),
                    f"{self._inbox()} gets deliver({sender.id}, {shown(awaited[0])}), as it was sent",
                    f"it gets deliver({sender.id}, {difference(list(awaited[0]), got)})",
                )
            awaited.remove(match)

    def expect_lost(self, peer: int, after: str) -> None:
        """Check that the loss of ``peer`` is reported, with a reason.

        :param after: what happened.
        """
        self.may_lose.add(peer)
        self._take(
            after, f"lost({peer}, REASON)", lambda e: e.kind == "lost" and e.peer == peer, peer
        )

    def expect_found(self, peer: int, after: str) -> None:
        """Check that the peer is reported as connected again after it was lost."""
        self._take(after, f"found({peer})", lambda e: e.kind == "found" and e.peer == peer, peer)

    def expect_another_loss(self, peer: int, before: int, after: str) -> None:
        """Check that more losses of ``peer`` are reported than ``before``."""
        if not self.inbox.wait_for(lambda _: len(self.losses(peer)) > before, self.limits.seconds):
            self.limits.note_passed()
            raise self.deviation(
                after, f"raises an error, or {self._inbox()} gets lost({peer}, REASON)", "neither"
            )

    def expect_lost_or_error(self, peer: int, sending: Sending, after: str) -> None:
        """Check that ``sending`` fails, or the loss of ``peer`` is reported."""
        self.may_lose.add(peer)
        if not self.inbox.wait_for(lambda _: bool(self.losses(peer)), self.limits.seconds):
            sending.wait(self.limits.seconds)
            if sending.error is None:
                self.limits.note_passed()
                raise self.deviation(
                    after,
                    f"send() raises an error, or {self._inbox()} gets lost({peer}, ...)",
                    "neither",
                )

    def wait_until_found(self, peer: int) -> None:
        """Wait until the peer is found again, if it is lost; at most for a time."""

        def is_found(events: list[Event]) -> bool:
            kinds = [
                event.kind
                for event in events
                if event.peer == peer and event.kind in ("lost", "found")
            ]
            return not kinds or kinds[-1] == "found"

        self.inbox.wait_for(lambda _: False, 0.05)  # a loss may not have been noticed yet
        self.inbox.wait_for(is_found, self.limits.seconds)

    def got(self, sender: Worker, parts: Sequence[bytes], given_up: Callable[[], bool]) -> bool:
        """Wait until this message has arrived or the sender reports a loss; return whether it arrived."""

        def arrived() -> bool:
            return any(
                event.kind == "deliver" and not event.taken and event.parts == list(parts)
                for event in self.inbox.events
            )

        end = time.monotonic() + self.limits.seconds
        while time.monotonic() < end and not arrived() and not given_up():
            self.inbox.wait_for(lambda _: arrived(), 0.02)
        event = self.inbox.take(
            lambda e: e.kind == "deliver" and e.peer == sender.id and e.parts == list(parts), 0
        )
        return event is not None

    def losses(self, peer: int) -> list[Event]:
        """Return the losses of ``peer`` that were reported."""
        return [
            event
            for event in list(self.inbox.events)
            if event.kind == "lost" and event.peer == peer
        ]

    def take_messages(self) -> list[Event]:
        """Return all messages that have arrived. These, and those that arrive later, are expected."""
        self._takes_all = True
        messages = [event for event in list(self.inbox.events) if event.kind == "deliver"]
        for event in messages:
            event.taken = True
        return messages

    def _take(self, call: str, wanted: str, which: Callable[[Event], bool], peer: int) -> Event:
        limit = self.limits.seconds
        event = self.inbox.take(lambda e: which(e) and e.parts not in self.may_get, limit)
        self._check_inbox()
        if event is None:
            self.limits.note_passed()
            others = [str(event) for event in self.inbox.events if not event.taken][:3]
            got = f"not within {limit:g} s" + (f"; it gets {', '.join(others)}" if others else "")
            raise deviate(call, f"{self._inbox()} gets {wanted}", got)
        return event

    # --- at the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the test has expected every event that happened."""
        self._check_inbox()
        for event in self.inbox.events:
            expected = event.taken or self._takes_all or event.parts in self.may_get
            if event.kind == "deliver" and not expected:
                raise deviate(
                    f"{_name(event.peer)}.send({self.id}, ...)",
                    f"{self._inbox()} gets each message once",
                    f"it gets one more: {event}",
                )
            if event.kind == "lost" and event.peer not in self.may_lose and not self.closed:
                raise deviate(
                    self.called("(the connections are left alone)"),
                    f"{self._inbox()} gets no loss",
                    f"it gets {event}",
                )

    def _check_inbox(self) -> None:
        if self.inbox.wrong:
            call, _, rule = self.inbox.wrong[0].partition("; ")
            raise deviate(f"{self.name}: inbox.{call}", rule, "it is not")

    # --- words ---------------------------------------------------------------------------------------

    def called(self, text: str) -> str:
        """Return a call of the transport as it is written in Python."""
        return f"{self.name}.{text}"

    def deviation(self, text: str, expected: str, got: str) -> DeviationError:
        """Return the error for a call that did not do what it should."""
        return deviate(self.called(text), expected, got)

    def _inbox(self) -> str:
        return f"{self.name}'s inbox"


class Sending:
    """A call of ``send`` on a thread of its own, which may block.

    :ivar text: the call.
    :ivar error: what it has raised.
    """

    def __init__(self, text: str, send: Callable[[], None]) -> None:
        self.text = text
        self.error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, args=(send,), name=text, daemon=True).start()

    def _run(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._ended.wait(seconds)


class Workers:
    """Makes the workers of a test. Calling it starts a group.

    :param make: makes the transport of the worker with the id given.
    :param limits: the time limits of the run.
    :param second: the process for all workers but worker 0; None if they are in this one.
    """

    def __init__(
        self, make: MakeTransport, limits: Limits, second: SecondProcess | None = None
    ) -> None:
        self._make = make
        self.limits = limits
        self._second = second

    def make(self, worker_id: int) -> Worker:
        """Make a worker, which does not listen."""
        make = self._second.make if self._second and worker_id else self._make
        try:
            transport = self.limits.call(f"make_transport({worker_id})", lambda: make(worker_id))
        except DeviationError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise deviate(f"make_transport({worker_id})", "a transport", text) from error
        return Worker(worker_id, transport, self.limits)

    @contextlib.contextmanager
    def __call__(self, size: int = 2, *, learn: bool = True) -> Iterator[list[Worker]]:
        """Start workers that listen and know each other, and close them afterwards.

        If the block ends without an error, nothing may have happened that was not asked for, and
        nothing may be left open.
        """
        workers: list[Worker] = []
        if self._second:
            self._second.call("begin")
        remainder = resources.Remainder()
        escaped: list[str] = []
        before, threading.excepthook = (
            threading.excepthook,
            lambda args: escaped.append(resources.escaped(args)),
        )
        try:
            with self._started(workers, size, learn):
                yield workers
        finally:
            threading.excepthook = before
        if escaped:
            raise deviate("(a thread of the transport)", "it ends without an exception", escaped[0])
        remainder.check("close(0) of all workers", self.limits)
        if self._second:
            self._second.check("close(0) of all workers", self.limits)

    def listening(self) -> list[object]:
        """Return the addresses at which stream sockets of the workers' processes listen."""
        return resources.listening() + (self._second.call("listening") if self._second else [])

    @contextlib.contextmanager
    def _started(self, workers: list[Worker], size: int, learn: bool) -> Iterator[None]:
        try:
            for worker_id in range(size):
                workers.append(self.make(worker_id))
                workers[-1].listen()
            for worker in workers if learn else ():
                worker.learn(*(peer for peer in workers if peer is not worker))
            yield
            for worker in workers:
                worker.check()
        except BaseException:
            for worker in workers:
                with contextlib.suppress(DeviationError):
                    self._end(worker)
            raise
        for worker in workers:
            worker.inbox.unblock()
        for worker in workers:
            self._end(worker)

    @staticmethod
    def _end(worker: Worker) -> None:
        worker.inbox.unblock()
        if not worker.closed:
            worker.close(0)


def _name(worker_id: int) -> str:
    return f"worker{worker_id}"


def _send(peer: int, parts: Sequence[bytes], reply: bool) -> str:
    return f"send({peer}, {shown(parts)}, reply={reply})"
