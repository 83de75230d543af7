"""The transport in C++: it moves messages between workers over ZeroMQ, and knows nothing of torch."""

from collections.abc import Callable, Iterable

from typing_extensions import Buffer

class TransportError(RuntimeError):
    """The transport cannot do what was asked; the text is for the user."""

class Transport:
    """Connections to and from the workers of a group.

    It listens where :meth:`bind` says, and connects to a peer when the first message goes there. A
    peer to which the connection ends is lost; the transport tries to reach it again until it is found
    or forgotten.

    :param public_key: in Z85, 40 bytes, with its ``secret_key``; None for no encryption. Without it
        whoever connects is believed to be the worker that it says it is.
    :param max_message: bytes that the parts of one message may have together, in both directions.
        Who sends more is rejected.
    :param heartbeat: seconds between two signs of life on a connection without traffic.
    :param heartbeat_timeout: seconds without a word after which a connection has ended. A network that
        is cut for less loses nothing if it is back in time for TCP, which tries at ever longer
        intervals: count on half of it.
    :param handshake_timeout: seconds to connect, and again seconds to prove who one is.
    :param io_threads: threads of libzmq's.
    :param wants_proofs: whether who connects to a Unix socket, or listens there, proves who it is. It is
        a process of this user in any case.
    :param on_unknown_key: called with a public key (Z85), or the proof of a Unix socket, that was not
        learned when somebody connects with it, and with the seconds since then; returns the id of the
        worker that has it, or None to refuse. What it raises is written to stderr, and refuses.
    :param on_refused: called with a line for the log when somebody is refused, or something that came
        was no message. Parts of it come from who is refused.
    :raises TransportError: pyzmq's libzmq cannot be used, or has no encryption and is asked for it.

    Both callbacks run on a thread of their own, one at a time, and may take their time. Nothing else
    needs Python once a message is under way. A transport that nobody has closed is closed when Python
    ends.
    """

    def __init__(
        self,
        *,
        public_key: bytes | None,
        secret_key: bytes | None,
        max_message: int,
        heartbeat: float,
        heartbeat_timeout: float,
        handshake_timeout: float,
        io_threads: int = 1,
        wants_proofs: bool = False,
        on_unknown_key: Callable[[bytes, float], int | None] | None = None,
        on_refused: Callable[[str], object] | None = None,
    ) -> None: ...
    def bind(self, endpoints: list[str]) -> list[str]:
        """Listen, and return where: with the ports that the system has chosen for ``*``.

        :raises OSError: one cannot listen there; ``filename`` is the endpoint.
        """

    def start(self, self_id: int) -> None:
        """Be worker ``self_id`` to others. Before the first :meth:`send`."""

    def learn(
        self,
        peer: int,
        endpoint: str,
        public_key: bytes | None,
        proofs: tuple[bytes, bytes, bytes, bytes] | None = None,
        max_message: int | None = None,
    ) -> None:
        """Take note of where a peer listens, and let it in.

        :param endpoint: ``tcp://ADDRESS:PORT`` with a numeric address, or ``ipc://PATH``.
        :param proofs: for Unix sockets, 32 bytes each: what this worker shows to the peer when it
            connects, and the peer to this worker; then what this worker answers, and what the peer
            answers. Only with ``wants_proofs``.
        :param max_message: bytes of one message that the peer takes; None for any. A larger one is an
            error of :meth:`send`.
        :raises TransportError: that is no such endpoint, or there is a key where none is expected.
        """

    def forget(self, peer: int) -> None:
        """Drop the connections with a peer, and refuse it; one that is not known does no harm."""

    def reject(self, peer: int, reason: str) -> None:
        """End the connections with a peer that has sent what is no message."""

    def send(self, peer: int, parts: Iterable[Buffer], reply: bool) -> None:
        """Send a message; for tests. The buffers must not change before it has left.

        :raises TransportError: the peer is not known, or lost.
        """

    def receive(
        self, timeout: float | None = None
    ) -> tuple[str, int, list[memoryview], str] | None:
        """Return the next event, for tests: what ("message", "lost", "found"), peer, parts and reason.

        :returns: None after ``timeout`` seconds without one, and once the transport is closed.
        """

    def close(self, linger: float) -> None:
        """End all connections; a second call does nothing.

        :param linger: seconds for what was sent to leave.
        """

    def metrics(self) -> dict[str, str]:
        """Return what is worth knowing, as text."""

    def __rpc_transport__(self) -> object:
        """Return the capsule by which an agent takes the transport."""

def make_keys() -> tuple[bytes, bytes]:
    """Make the keys of one session: public and secret, 40 characters each (Z85).

    :raises TransportError: pyzmq's libzmq cannot be used, or has no encryption.
    """
