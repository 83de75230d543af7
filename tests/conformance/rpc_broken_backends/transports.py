"""Transports that each break one promise, to check that ``TransportContract`` finds it.

Each is the transport of SOCKETS with one method changed. The promises are in the documentation of
``rpc_backends_agents.Transport`` or in `docs/reference/transport.md`.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rpc_backends_agents.transports.sockets import SocketTransport, receive

Parts = Sequence[memoryview]


@dataclass(frozen=True)
class Broken:
    """A transport that breaks one promise.

    :ivar transport: its class.
    :ivar test: the test of ``TransportContract`` that checks this promise.
    :ivar names: the method at fault, which the failure must name.
    """

    transport: type[SocketTransport]
    test: str
    names: str


BROKEN: dict[str, Broken] = {}


def breaks(test: str, names: str) -> Callable[[type[SocketTransport]], type[SocketTransport]]:
    """Add a transport to the list, under the name of its class."""

    def add(transport: type[SocketTransport]) -> type[SocketTransport]:
        BROKEN[transport.__name__] = Broken(transport, test, names)
        return transport

    return add


class _Inbox:
    """An inbox that passes events on to another; subclasses change what the transport reports."""

    def __init__(self, inbox: Any) -> None:
        self.inner = inbox

    def deliver(self, peer: int, parts: Any) -> None:
        self.inner.deliver(peer, parts)

    def lost(self, peer: int, reason: str) -> None:
        self.inner.lost(peer, reason)

    def found(self, peer: int) -> None:
        self.inner.found(peer)


class _Reporting(SocketTransport):
    """A transport that reports through an `_Inbox`, which subclasses replace."""

    Inbox: type[_Inbox] = _Inbox

    def listen(self, worker_id: int, name: str, inbox: Any) -> str:
        return super().listen(worker_id, name, self.Inbox(inbox))  # type: ignore[arg-type]


# --- messages ---------------------------------------------------------------------------------------


@breaks("test_one_message", "send(1")
class SwapsParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, parts[::-1] if len(parts) == 2 else parts, reply)


@breaks("test_one_message", "send(1")
class MergesParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, [memoryview(b"".join(parts))], reply)


@breaks("test_message_before_learn", "send(1")
class AdmitsOnlyWhomItKnows(SocketTransport):
    def _link(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        if peer not in self._addresses:
            raise OSError("this worker was not learned")
        super()._link(connection, peer, peer_calls)


@breaks("test_empty_parts", "send(1")
class DropsEmptyParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, [part for part in parts if len(part)], reply)


@breaks("test_numbers_of_parts", "[] (no parts)")
class DropsMessagesWithoutParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if parts:
            super().send(peer, parts, reply)


@breaks("test_numbers_of_parts", "send(1")
class LimitsTheNumberOfParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, parts[:1024], reply)


@breaks("test_sizes_of_parts[one part]", "send(1, [65537 B]")
class TruncatesLargeParts(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, [part[:65536] for part in parts], reply)


@breaks("test_any_messages", "send(1")
class LosesTheLastByteOf4096(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, [part[:-1] if len(part) == 4096 else part for part in parts], reply)


@breaks("test_large_message", "1 bytes differ")
class FlipsABitOfLargeMessages(_Reporting):
    class Inbox(_Inbox):
        def deliver(self, peer: int, parts: Any) -> None:
            for part in parts:
                if len(part) > 1 << 22:
                    part[-3] ^= 1
            super().deliver(peer, parts)


@breaks("test_order", "send(1")
class ReordersMessages(_Reporting):
    class Inbox(_Inbox):
        held: Any = None
        count = 0

        def deliver(self, peer: int, parts: Any) -> None:
            self.count += 1
            if self.count % 100 == 50:
                self.held = parts
                return
            super().deliver(peer, parts)
            if self.held is not None:
                super().deliver(peer, self.held)
                self.held = None


@breaks("test_order", "send(1")
class DropsEveryHundredth(SocketTransport):
    count = 0

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        self.count += 1
        if self.count % 100:
            super().send(peer, parts, reply)


@breaks("test_order", "send(1")
class SendsEveryHundredthTwice(SocketTransport):
    count = 0

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        self.count += 1
        super().send(peer, parts, reply)
        if self.count % 100 == 0:
            super().send(peer, parts, reply)


@breaks("test_same_contents", "send(1")
class DropsRepetitions(_Reporting):
    class Inbox(_Inbox):
        last: Any = None

        def deliver(self, peer: int, parts: Any) -> None:
            if parts != self.last:
                super().deliver(peer, parts)
            self.last = parts


@breaks("test_peers_are_told_apart", "send(")
class TakesAllPeersForTheFirst(_Reporting):
    class Inbox(_Inbox):
        first: int | None = None

        def deliver(self, peer: int, parts: Any) -> None:
            self.first = peer if self.first is None else self.first
            super().deliver(self.first, parts)


@breaks("test_delivered_memory", "inbox.deliver")
class UsesItsBufferAgain(_Reporting):
    class Inbox(_Inbox):
        memory = bytearray(1 << 16)

        def deliver(self, peer: int, parts: Any) -> None:
            views, at = [], 0
            for part in parts:
                self.memory[at : at + len(part)] = part
                views.append(memoryview(self.memory)[at : at + len(part)])
                at += len(part)
            super().deliver(peer, views)


@breaks("test_one_message", "inbox.deliver")
class DeliversTexts(_Reporting):
    class Inbox(_Inbox):
        def deliver(self, peer: int, parts: Any) -> None:
            super().deliver(peer, [part.hex() for part in parts])


@breaks("test_idle_connection", "lost(1")
class EndsIdleConnections(SocketTransport):
    def _read(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        connection.settimeout(1.0)
        super()._read(connection, peer, peer_calls)


# --- replies ----------------------------------------------------------------------------------------


@breaks("test_no_reply_on_another_connection", "send(0")
class AnswersByTheWrongConnection(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, parts, reply and (peer, False) not in self._links)


@breaks("test_reply_uses_the_connection_of_its_request", "reply=True")
class AnswersOnItsOwnConnection(SocketTransport):
    def __init__(self) -> None:
        super().__init__()
        self._own: dict[int, Any] = {}

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if reply and peer in self._own:
            self._links[peer, True] = self._own[peer]
        super().send(peer, parts, reply)
        if not reply:
            self._own[peer] = self._links[peer, False]


@breaks("test_no_reply_on_another_connection", "send(0")
class AnswersByAnyConnection(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, parts, reply and (peer, True) in self._links)


@breaks("test_reply_before_the_callee_calls", "reply=True")
class AnswersOnlyWhomItCalls(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if reply and (peer, False) not in self._links:
            raise ConnectionError("not connected")
        super().send(peer, parts, reply)


# --- losses -----------------------------------------------------------------------------------------


@breaks("test_lost_peer_is_found", "found(1)")
class LosesAPeerForGood(_Reporting):
    class Inbox(_Inbox):
        def found(self, peer: int) -> None:
            pass

    def learn(self, peer: int, name: str, address: str) -> None:
        super().learn(peer, name, address)
        self.gone = getattr(self, "gone", set())

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if not reply and peer in self.gone and (peer, False) not in self._links:
            raise ConnectionError("the worker is lost")
        super().send(peer, parts, reply)
        self.gone.add(peer)


@breaks("test_cut_is_reported", "lost(1, REASON)")
class ReportsNoLoss(_Reporting):
    class Inbox(_Inbox):
        def lost(self, peer: int, reason: str) -> None:
            pass


@breaks("test_cut_is_reported", "inbox.lost(1, '')")
class GivesNoReason(_Reporting):
    class Inbox(_Inbox):
        def lost(self, peer: int, reason: str) -> None:
            super().lost(peer, "")


@breaks("test_loss_comes_before_found", "found(1)")
class FindsBeforeItLoses(_Reporting):
    class Inbox(_Inbox):
        def lost(self, peer: int, reason: str) -> None:
            super().found(peer)
            super().lost(peer, reason)

        def found(self, peer: int) -> None:
            pass


@breaks("test_cut_loses_one_peer_only", "lost(2")
class LosesAllPeersAtOnce(_Reporting):
    class Inbox(_Inbox):
        def lost(self, peer: int, reason: str) -> None:
            for lost_peer in (1, 2):
                super().lost(lost_peer, reason)


@breaks("test_nothing_twice_after_a_cut", "send(1")
class SendsAgainAfterALoss(SocketTransport):
    before: Any = None

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if not reply and self.before is not None and (peer, False) not in self._links:
            super().send(peer, self.before, reply)
        super().send(peer, parts, reply)
        self.before = [memoryview(bytes(part)) for part in parts]


@breaks("test_no_part_of_a_message", "send()")
class DropsWhatItCannotSend(_Reporting):
    class Inbox(_Inbox):
        def lost(self, peer: int, reason: str) -> None:
            pass

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        with suppress(OSError, KeyError):  # KeyError: the reader has just removed the connection
            super().send(peer, parts, reply)


@breaks("test_no_part_of_a_message", "whole message or nothing")
class DeliversWhatThereIs(SocketTransport):
    def _read(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        parts: list[bytearray] = []
        with suppress(Exception):
            while True:
                parts = []
                (count,) = struct.unpack("<I", receive(connection, 4))
                sizes = struct.unpack(f"<{count}Q", receive(connection, 8 * count))
                for size in sizes:
                    parts.append(receive(connection, size))
                self._inbox.deliver(peer, parts)
        if parts:
            self._inbox.deliver(peer, parts)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        super()._read(connection, peer, peer_calls)


@breaks("test_answer_before_loss", "lost(1")
class LosesWhatArrivesLast(_Reporting):
    class Inbox(_Inbox):
        held: Any = None

        def deliver(self, peer: int, parts: Any) -> None:
            before, self.held = self.held, threading.Timer(0.3, super().deliver, (peer, parts))
            if before is not None:
                before.join()
            self.held.start()


@breaks("test_request_to_a_closed_peer", "worker1 has closed its transport")
class SendsIntoTheVoid(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        with suppress(ConnectionRefusedError):
            super().send(peer, parts, reply)


@breaks("test_forget_ends_connections", "worker0.forget(1)")
class ForgetsNobody(SocketTransport):
    def forget(self, peer: int) -> None:
        pass

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        super().send(peer, parts, reply)


@breaks("test_reject_ends_connections", "after the peer was lost")
class RejectsForGood(SocketTransport):
    def reject(self, peer: int, reason: str) -> None:
        super().reject(peer, reason)
        self._addresses.pop(peer, None)


@breaks("test_reject_ends_connections", "worker0.reject(")
class RejectsNobody(SocketTransport):
    def reject(self, peer: int, reason: str) -> None:
        pass


@breaks("test_forgotten_peer_is_learned_again", "after the peer was lost")
class NeverLearnsAgain(SocketTransport):
    gone: frozenset[int] = frozenset()

    def forget(self, peer: int) -> None:
        super().forget(peer)
        self._addresses.pop(peer, None)
        self.gone |= {peer}

    def learn(self, peer: int, name: str, address: str) -> None:
        if peer not in self.gone:
            super().learn(peer, name, address)
        else:
            json.loads(address)


# --- errors -----------------------------------------------------------------------------------------


@breaks("test_send_to_unknown_peer", "send(7")
class SendsToAnybody(SocketTransport):
    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if peer in self._addresses:
            super().send(peer, parts, reply)


@breaks("test_send_to_forgotten_unknown_peer", "forget(7)")
class ForgetsOnlyWhomItKnows(SocketTransport):
    def forget(self, peer: int) -> None:
        self._addresses[peer]
        super().forget(peer)


@breaks("test_learn_invalid_address[garbage]", "learn(5")
class LearnsAnything(SocketTransport):
    def learn(self, peer: int, name: str, address: str) -> None:
        with suppress(ValueError):
            super().learn(peer, name, address)


@breaks("test_send_after_close", "send(1")
class SendsAfterClose(SocketTransport):
    def close(self, linger: float) -> None:
        addresses = dict(self._addresses)
        super().close(linger)
        self._addresses.update(addresses)
        self._closed = False


@breaks("test_methods_after_close", "metrics()")
class CountsNothingAfterClose(SocketTransport):
    def metrics(self) -> dict[str, str]:
        return {"port": str(self._listener.getsockname()[1])}


@breaks("test_metrics", "metrics()")
class CountsInNumbers(SocketTransport):
    def metrics(self) -> dict[str, str]:
        return {"links": len(self._links)}  # type: ignore[dict-item]


@breaks("test_one_message", "listen(")
class ListensAtAPair(SocketTransport):
    def listen(self, worker_id: int, name: str, inbox: Any) -> str:
        return tuple(json.loads(super().listen(worker_id, name, inbox)))  # type: ignore[return-value]

    def learn(self, peer: int, name: str, address: Any) -> None:
        self._addresses[peer] = address


@breaks("test_strangers", "send(")
class StopsAtStrangers(SocketTransport):
    def _accept(self) -> None:
        with suppress(OSError, RuntimeError):
            while True:
                connection, _ = self._listener.accept()
                self._link(connection, int.from_bytes(receive(connection, 4), "little"), True)


# --- threads ----------------------------------------------------------------------------------------


@breaks("test_peer_that_receives_nothing", "send(2")
class SendsOneMessageAtATime(SocketTransport):
    def __init__(self) -> None:
        super().__init__()
        self._turns = threading.Lock()

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        with self._turns:
            super().send(peer, parts, reply)


@breaks("test_metrics_and_forget_while_sending", "forget(1)")
class ForgetsOnlyBetweenMessages(SocketTransport):
    def __init__(self) -> None:
        super().__init__()
        self._locks: dict[int, threading.Lock] = {}

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        with self._locks.setdefault(peer, threading.Lock()):
            super().send(peer, parts, reply)

    def forget(self, peer: int) -> None:
        with self._locks.setdefault(peer, threading.Lock()):
            super().forget(peer)


@breaks("test_all_at_once", "send(")
class MixesConcurrentMessages(_Reporting):
    class Inbox(_Inbox):
        parts: Any = None

        def deliver(self, peer: int, parts: Any) -> None:
            self.parts = parts
            time.sleep(0)
            super().deliver(peer, self.parts)


@breaks("test_one_message", "a thread of the transport")
class LetsThreadsDie(SocketTransport):
    def _accept(self) -> None:
        super()._accept()
        raise OSError("the listener is closed")


# --- close ------------------------------------------------------------------------------------------


@breaks("test_close_twice", "close(0)")
class CloseRaises(SocketTransport):
    def close(self, linger: float) -> None:
        super().close(linger)
        raise RuntimeError("cannot be closed")


@breaks("test_close_twice", "close(0)")
class ClosesOnce(SocketTransport):
    closed = False

    def close(self, linger: float) -> None:
        assert not self.closed
        self.closed = True
        super().close(linger)


@breaks("test_close_before_listen", "close(0)")
class ClosesOnlyAfterListen(SocketTransport):
    def close(self, linger: float) -> None:
        assert self._me
        super().close(linger)


@breaks("test_close_flushes", "send(1")
class IgnoresLinger(SocketTransport):
    def __init__(self) -> None:
        super().__init__()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._ended = False

    def send(self, peer: int, parts: Parts, reply: bool) -> None:
        if not self._sender.is_alive():
            self._sender.start()
        self._queue.put((peer, parts, reply))

    def _send_all(self) -> None:
        while (message := self._queue.get()) is not None and not self._ended:
            time.sleep(0.05)
            with suppress(OSError):
                super().send(*message)

    def close(self, linger: float) -> None:
        self._ended = True
        self._queue.put(None)
        super().close(linger)


@breaks("test_close_does_not_wait_for_nothing", "close(30)")
class WaitsForLingerAlways(SocketTransport):
    def close(self, linger: float) -> None:
        super().close(linger)
        time.sleep(linger)


@breaks("test_close_waits_for_linger_at_most", "close(0.5)")
class ClosesWhenAllHasLeft(SocketTransport):
    def close(self, linger: float) -> None:
        super().close(10**6)


@breaks("test_nobody_listens_after_close", "close(0)")
class ListensForEver(SocketTransport):
    kept: list[Any] = []  # noqa: RUF012  # of all transports

    def close(self, linger: float) -> None:
        self.kept.append(self._listener)
        self._listener = socket.socket()
        super().close(linger)


@breaks("test_nothing_is_left[messages]", "x thread left")
class LeavesAThread(SocketTransport):
    def close(self, linger: float) -> None:
        super().close(linger)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@breaks("test_nothing_is_left[messages]", "x tcp socket left")
class LeavesASocket(SocketTransport):
    kept: list[Any] = []  # noqa: RUF012  # of all transports

    def close(self, linger: float) -> None:
        self.kept.append(socket.create_server(("127.0.0.1", 0)))
        super().close(linger)


@breaks("test_nothing_is_left_when_the_peer_hangs", "close(0)")
class WaitsForPeersToClose(SocketTransport):
    def close(self, linger: float) -> None:
        links = list(self._links.values())
        self._links = {}
        super().close(linger)
        for connection, reader in links:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            reader.join(linger)


@breaks("test_connections_that_ended_are_closed", "more")
class KeepsEndedConnections(SocketTransport):
    def __init__(self) -> None:
        super().__init__()
        self._kept: list[socket.socket] = []

    def _link(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        self._kept.append(connection.dup())
        super()._link(connection, peer, peer_calls)

    def close(self, linger: float) -> None:
        super().close(linger)
        for connection in self._kept:
            connection.close()
