"""The inbox that tests give to a transport. It keeps every event, and can stop taking messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from typing_extensions import Buffer

from rpc_backends_testing.transports.content import Parts, shown


@dataclass
class Event:
    """An event of a transport.

    :ivar kind: the method of the inbox: ``deliver``, ``lost`` or ``found``; or ``unsent``, of C++.
    :ivar parts: the parts of a message as they were when they arrived.
    :ivar memory: the memory that the transport gave for them.
    """

    kind: str
    peer: int
    parts: Parts = field(default_factory=list)
    memory: list[memoryview] = field(default_factory=list)
    reason: str = ""
    taken: bool = False

    def __str__(self) -> str:
        if self.kind == "deliver":
            return f"deliver({self.peer}, {shown(self.parts)})"
        if self.kind == "found":
            return f"found({self.peer})"
        return f"{self.kind}({self.peer}, {self.reason!r})"


class Inbox:
    """Keeps the events of one transport. Implements :class:`rpc_backends_agents.Inbox`.

    :ivar wrong: what is wrong with how the transport used the inbox, in words.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.wrong: list[str] = []
        self._changed = threading.Condition()
        self._blocked = False
        self._held = 0

    # --- what the transport calls --------------------------------------------------------------------

    def deliver(self, peer: int, parts: Iterable[Buffer]) -> None:
        """Keep a message."""
        memory = [self._view(part) for part in parts]
        copies = [bytes(view) for view in memory]
        self.keep(Event("deliver", self._peer("deliver", peer), copies, memory))

    def lost(self, peer: int, reason: str) -> None:
        """Keep the loss of a peer."""
        if not isinstance(reason, str) or not reason:
            self.complain(
                f"lost({peer!r}, {reason!r})", "the reason is a text that says what happened"
            )
        self.keep(Event("lost", self._peer("lost", peer), reason=str(reason)))

    def found(self, peer: int) -> None:
        """Keep the event that a peer was found again."""
        self.keep(Event("found", self._peer("found", peer)))

    def unsent(self, peer: int, reason: str) -> None:
        """Keep the event that a reply could not be sent. Only transports in C++ report it."""
        self.keep(Event("unsent", self._peer("unsent", peer), reason=reason))

    def disordered(self, last: int, order: int) -> None:
        """Keep an error in the numbers of events. Only transports in C++ number them."""
        self.complain(
            f"receive(event) gives event.order={order} after {last}",
            "the numbers of events go up by one, in the order in which receive() returns them",
        )

    # --- what tests call -----------------------------------------------------------------------------

    def block(self) -> None:
        """Take no more messages, so a transport that delivers one has to wait."""
        with self._changed:
            self._blocked = True

    def wait_until_holding(self, seconds: float) -> bool:
        """Wait until a transport waits in :meth:`deliver`; return whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._held > 0, seconds)

    def unblock(self) -> None:
        """Take messages again."""
        with self._changed:
            self._blocked = False
            self._changed.notify_all()

    def take(self, wanted: Callable[[Event], bool], seconds: float) -> Event | None:
        """Return the first wanted event that was not taken yet; None after ``seconds``."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for event in self.events:
                    if not event.taken and wanted(event):
                        event.taken = True
                        return event
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def wait_for(self, condition: Callable[[list[Event]], bool], seconds: float) -> bool:
        """Wait until ``condition`` of all events holds; return whether it does."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.events), seconds)

    def keep(self, event: Event) -> None:
        """Keep an event; wait as long as messages are not taken."""
        with self._changed:
            if event.kind == "deliver" and self._blocked:
                self._held += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._blocked)
                self._held -= 1
            self.events.append(event)
            self._changed.notify_all()

    def _peer(self, method: str, peer: object) -> int:
        if type(peer) is not int:
            self.complain(f"{method}({peer!r}, ...)", "the peer is a worker id, an int")
            raise TypeError(f"{method}: peer is {peer!r}; it must be an int.")
        return peer

    def _view(self, part: Buffer) -> memoryview:
        try:
            view = memoryview(part)
        except TypeError:
            self.complain(
                f"deliver(..., [{part!r}])", "each part has memory: bytes, bytearray, ..."
            )
            raise
        if not view.c_contiguous:
            self.complain(f"deliver(..., [{part!r}])", "the memory of each part is contiguous")
            raise TypeError("a part is not contiguous")
        return view.cast("B") if view.nbytes else view

    def complain(self, call: str, rule: str) -> None:
        """Note that the transport has used the inbox against a rule."""
        with self._changed:
            self.wrong.append(f"{call}; {rule}")
