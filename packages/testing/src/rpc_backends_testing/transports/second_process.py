"""A second process, which has the transports of all workers of a test but worker 0.

Tests call the methods of such a transport through :class:`RemoteTransport`. The transport's inbox is in
the process of the tests. Each call and each event is a message on a pipe; its sender waits for a result.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from rpc_backends_testing.deviations import deviate
from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.inbox import Event, Inbox
from rpc_backends_testing.transports.limits import Limits

#: Seconds that the process may take to start: it imports the author's modules.
_STARTING = 60.0
#: Seconds that the process may take to end.
_ENDING = 5.0

#: What a call of the other process returns: its value, or the type and the text of its exception.
_Result = tuple[Any, tuple[str, str] | None]


class _Pipe:
    """Calls functions of the other process, and answers its calls, each on a thread of its own.

    :param answer: what is done for a call of the other process.
    """

    def __init__(self, connection: Connection, answer: Callable[..., Any]) -> None:
        self._connection = connection
        self._answer = answer
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[_Result]] = {}
        self._sending = threading.Lock()
        self._ended = False
        self._busy: list[threading.Thread] = []

    def call(self, *call: Any) -> Any:
        """Call a function of the other process.

        :raises EOFError: the process has ended.
        :raises Exception: the call has raised an error, which has the same type name and text.
        """
        number, future = next(self._numbers), Future[_Result]()
        with self._sending:
            if self._ended:
                raise EOFError
            self._waiting[number] = future
            try:
                self._connection.send((True, number, call))
            except OSError:  # it has just ended, which serve() has not noticed yet
                del self._waiting[number]
                raise EOFError from None
        value, error = future.result()
        if error is not None:
            raise type(error[0], (Exception,), {})(error[1])
        return value

    def serve(self) -> None:
        """Receive until the other process has ended or has closed its end."""
        try:
            while True:
                is_call, number, content = self._connection.recv()
                if is_call:
                    thread = threading.Thread(target=self._run, args=(number, content), daemon=True)
                    self._busy = [busy for busy in self._busy if busy.is_alive()] + [thread]
                    thread.start()
                else:
                    self._waiting.pop(number).set_result(content)
        except (EOFError, OSError):
            with self._sending:
                self._ended = True
            for future in self._waiting.values():
                future.set_exception(EOFError())

    def wait_until_idle(self, seconds: float) -> None:
        """Wait until the threads of earlier calls have ended.

        :param seconds: how long to wait for each; the thread of a call that hangs never ends.
        """
        for thread in self._busy:
            if thread is not threading.current_thread():
                thread.join(seconds)

    def _run(self, number: int, call: Sequence[Any]) -> None:
        try:
            result: _Result = (self._answer(*call), None)
        except Exception as error:
            result = (None, (type(error).__name__, str(error)))
        with self._sending:
            if not self._ended:
                with contextlib.suppress(OSError):  # the other process has just ended
                    self._connection.send((False, number, result))


class SecondProcess:
    """The process, seen from the tests.

    :param kind: a class with a method ``make_transport(worker_id)``; the process imports its module.
    """

    def __init__(self, kind: type) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._connection = ours
        self._inboxes: dict[int, Inbox] = {}
        self._process = context.Process(target=_main, args=(theirs, kind), daemon=True)
        self._process.start()
        theirs.close()
        self._wait_until_started()
        self._pipe = _Pipe(ours, self._event)
        threading.Thread(target=self._pipe.serve, daemon=True).start()

    def call(self, *call: Any) -> Any:
        """Call a function of the process.

        :raises RuntimeError: the process has ended; the text says how.
        :raises Exception: the call has raised an error, which has the same type name and text.
        """
        try:
            return self._pipe.call(*call)
        except EOFError:
            raise RuntimeError(f"the second process has ended{self._how()}") from None

    def make(self, worker_id: int) -> RemoteTransport:
        """Make the transport of a worker there."""
        native = self.call("make", worker_id)
        return RemoteTransport(self, worker_id, native)

    def listen(self, worker_id: int, name: str, inbox: Inbox) -> Any:
        """Let a transport listen, and give its events to ``inbox``."""
        self._inboxes[worker_id] = inbox
        return self.call("transport", worker_id, "listen", worker_id, name)

    def check(self, call: str, limits: Limits) -> None:
        """Check that the transports left nothing open, and that no exception ended one of their threads.

        :raises DeviationError: they have not.
        """
        escaped, left = self.call("end", limits.ending)
        if escaped:
            raise deviate("(a thread of the transport)", "it ends without an exception", escaped[0])
        if left != "nothing":
            limits.note_passed()
            rule = "no socket, file or thread is left when it has returned"
            raise deviate(call, rule, f"{left} left in the second process")

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.join(_ENDING)

    def _wait_until_started(self) -> None:
        if not self._connection.poll(_STARTING):
            self.stop()
            raise TimeoutError(f"The second process has not started within {_STARTING:g} s.")
        try:
            self._connection.recv()
        except EOFError:
            how = self._how()
            raise RuntimeError(
                f"The second process has ended{how} while it started; its error is on stderr."
            ) from None

    def _event(self, worker_id: int, kind: str, *fields: Any) -> None:
        inbox = self._inboxes[worker_id]
        if kind == "wrong":
            inbox.wrong.append("; ".join(fields))
            return
        peer, parts, reason = fields
        inbox.keep(Event(kind, peer, parts, [memoryview(part) for part in parts], reason))

    def _how(self) -> str:
        self._process.join(_ENDING)
        status = self._process.exitcode
        if status is None:
            return ""
        return f" by {signal.Signals(-status).name}" if status < 0 else f" with status {status}"


class RemoteTransport:
    """A transport in the second process, with the methods of :class:`rpc_backends_agents.Transport`.

    :ivar native: whether the transport is in C++.
    """

    def __init__(self, process: SecondProcess, worker_id: int, native: bool) -> None:
        self._process = process
        self._id = worker_id
        self.native = native

    def listen(self, worker_id: int, name: str, inbox: Inbox) -> Any:
        """Start to listen."""
        return self._process.listen(worker_id, name, inbox)

    def learn(self, peer: int, name: str, address: str) -> None:
        """Store a peer's address."""
        self._call("learn", peer, name, address)

    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        """Send a message."""
        self._call("send", peer, [bytes(part) for part in parts], reply)

    def forget(self, peer: int) -> None:
        """Drop the connections to a peer."""
        self._call("forget", peer)

    def reject(self, peer: int, reason: str) -> None:
        """Close the connections to a peer."""
        self._call("reject", peer, reason)

    def metrics(self) -> Any:
        """Return the metrics."""
        return self._call("metrics")

    def close(self, linger: float) -> None:
        """Close the transport."""
        self._call("close", linger)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._process.call("transport", self._id, method, *arguments)


# --- in the second process ----------------------------------------------------------------------------


def _main(connection: Connection, kind: type) -> None:
    """Serve the tests until they close their end of the pipe."""
    there = _There(kind)
    there.pipe = _Pipe(connection, there.answer)
    threading.excepthook = there.escaped_from
    connection.send("started")
    there.pipe.serve()


class _There:
    """What the second process does for the tests."""

    pipe: _Pipe

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._transports: dict[int, Any] = {}
        self._escaped: list[str] = []
        self._remainder = resources.Remainder()

    def answer(self, what: str, *arguments: Any) -> Any:
        """Do what the tests ask for."""
        return getattr(self, what)(*arguments)

    def begin(self) -> None:
        """Forget the transports of the previous test, and note what is open."""
        self._transports.clear()
        self._escaped.clear()
        self.pipe.wait_until_idle(0.2)
        self._remainder = resources.Remainder()

    def end(self, seconds: float) -> tuple[list[str], str]:
        """Return the exceptions that have ended threads, and what is still open after ``seconds``."""
        return self._escaped, self._remainder.now(seconds)

    def make(self, worker_id: int) -> bool:
        """Make the transport of a worker; return whether it is in C++."""
        transport = self._kind().make_transport(worker_id)
        native = hasattr(transport, "__rpc_transport__")
        self._transports[worker_id] = in_python(transport) if native else transport
        return native

    def transport(self, worker_id: int, method: str, *arguments: Any) -> Any:
        """Call a method of a transport."""
        if method == "listen":
            arguments = (*arguments, _ForwardingInbox(self.pipe, worker_id))
        elif method == "send":
            peer, parts, reply = arguments
            arguments = (peer, [memoryview(part) for part in parts], reply)
        return getattr(self._transports[worker_id], method)(*arguments)

    def connections(self) -> set[str]:
        """Return the names of this process's connections, as the author's class names them."""
        peers: set[str] = self._kind().connections()
        return peers

    def cut(self, names: set[str]) -> None:
        """Cut connections of this process."""
        self._kind().cut(names)

    def listening(self) -> list[object]:
        """Return the addresses at which this process listens."""
        return resources.listening()

    def escaped_from(self, args: threading.ExceptHookArgs) -> None:
        """Note an exception that has ended a thread."""
        self._escaped.append(resources.escaped(args))


class _ForwardingInbox(Inbox):
    """Checks the events of a transport here, and gives them to the inbox in the tests."""

    def __init__(self, pipe: _Pipe, worker_id: int) -> None:
        super().__init__()
        self._pipe = pipe
        self._id = worker_id

    def keep(self, event: Event) -> None:
        """Keep an event there; wait as long as the inbox takes no messages."""
        self._pipe.call(self._id, event.kind, event.peer, event.parts, event.reason)

    def complain(self, call: str, rule: str) -> None:
        """Note there what is wrong."""
        self._pipe.call(self._id, "wrong", call, rule)


def in_python(transport: Any) -> Any:
    """Wrap a C++ transport as a Python one. The package that declares its interface does this."""
    from rpc_backends_agents import in_python

    return in_python(transport)
