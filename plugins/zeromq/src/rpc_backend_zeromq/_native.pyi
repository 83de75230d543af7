"""The C++ transport: moves messages between workers over TCP and Unix sockets, independent of torch."""

from collections.abc import Callable, Iterable

from typing_extensions import Buffer

class TransportError(RuntimeError):
    """The transport cannot do what was asked; the text tells the user why."""

class Certificates:
    """The certificate of a worker, its key, and the authorities that it trusts.

    :param chain: the certificate in PEM, followed by those between it and an authority.
    :param secret_key: the private key in PEM, without a password.
    :param authorities: the certificates of the authorities in PEM.
    :raises TransportError: a part is invalid, or the parts do not belong together.
    """

    def __init__(
        self, chain: bytes, secret_key: bytes, authorities: bytes, fips: bool = False
    ) -> None: ...
    @property
    def identity(self) -> str:
        """The URI of the certificate, or else its first DNS name."""

    @property
    def serial(self) -> str:
        """The number of the certificate, in hexadecimal digits."""

    @property
    def key(self) -> bytes:
        """What stands for the identity in records and connections (40 characters of Z85)."""

    @property
    def expires(self) -> int:
        """When the certificate expires, in seconds since 1970."""

    @property
    def chain(self) -> bytes:
        """The certificate and those behind it, in DER."""

    def sign(self, data: bytes) -> bytes:
        """Return a signature with the private key."""

    def check(self, chain: bytes, signature: bytes, data: bytes) -> tuple[str, str, bytes]:
        """Check a certificate and a signature; return identity, serial number and key of the signer.

        :raises TransportError: one is not valid; the text is the reason.
        """

class Transport:
    """Connections to and from the workers of a group.

    The transport listens on the endpoints given to :meth:`bind`. It connects to a peer when it sends the
    first message. When the connection to a peer ends, the peer is lost; the transport tries to reconnect
    until it succeeds or the peer is forgotten.

    :param public_key: a key of :func:`make_keys`, given with ``secret_key``; None for no encryption.
        Without encryption, a process that connects can claim to be any worker.
    :param fips: whether the keys were made with ``fips``. Then only OpenSSL's FIPS provider is used.
    :param max_message: the limit for all parts of one message together, in bytes, in both directions.
        A peer that sends more is rejected.
    :param heartbeat: seconds between two heartbeats on an idle connection.
    :param heartbeat_timeout: seconds without data after which a connection has ended. A shorter network
        outage loses nothing if TCP retransmits in time. TCP waits longer before each further attempt, so
        count on surviving only outages of half this time.
    :param handshake_timeout: seconds to connect, and as many seconds again to authenticate.
    :param wants_proofs: whether both sides of a Unix socket must prove which worker they are. Both are
        always processes of this user.
    :param bulk_connections: connections to each peer over TCP for messages of 64 KiB or more, from 0 to
        16, in addition to the first one, which carries these too if there are none. Over a Unix socket
        there is one at most.
    :param long_link: the round trip time in seconds below which a peer gets one such connection at most.
    :param certificates: the certificate of this worker, in place of keys. Then the certificates of peers
        are verified, Unix sockets are encrypted, and connections over TCP need proofs too.
    :param on_unknown_key: called when a process connects with an unknown public key (Z85) or Unix socket
        proof. Its arguments are the key or proof and the seconds since the process connected. It returns
        the id of the worker with that key, or None to refuse. An exception is written to stderr, and the
        connection is refused.
    :param on_refused: called with a line for the log when a connection is refused or a message is
        invalid. The refused process supplies part of the line.
    :raises TransportError: a setting is invalid, or the keys do not belong together.

    Both callbacks run on one separate thread, one at a time, and may block. Sending and receiving
    messages needs no Python code. A transport that is still open is closed when Python exits.
    """

    def __init__(
        self,
        *,
        public_key: bytes | None,
        secret_key: bytes | None,
        fips: bool = False,
        max_message: int,
        heartbeat: float,
        heartbeat_timeout: float,
        handshake_timeout: float,
        wants_proofs: bool = False,
        bulk_connections: int,
        long_link: float = 0.0,
        certificates: Certificates | None = None,
        on_unknown_key: Callable[[bytes, float], int | None] | None = None,
        on_refused: Callable[[str], object] | None = None,
    ) -> None: ...
    def bind(self, endpoints: list[str]) -> list[str]:
        """Listen on endpoints, and return them with the ports that the system chose for ``*``.

        :raises OSError: listening failed; ``filename`` is the endpoint.
        """

    def start(self, self_id: int) -> None:
        """Set this worker's id, which peers see. Call it before the first :meth:`send`."""

    def learn(
        self,
        peer: int,
        endpoint: str,
        public_key: bytes | None,
        proofs: tuple[bytes, bytes, bytes, bytes] | None = None,
        max_message: int | None = None,
        process: tuple[int, int] = (0, 0),
    ) -> None:
        """Add a peer: where it listens, and its key, with which it may connect.

        :param endpoint: ``tcp://ADDRESS:PORT`` with a numeric address, or ``ipc://PATH``.
        :param proofs: four proofs of 32 bytes for Unix sockets: what this worker sends when it connects,
            what the peer sends when it connects, what this worker answers, and what the peer answers.
            Only with ``wants_proofs``.
        :param max_message: the size of the largest message that the peer accepts, in bytes; None for no
            limit. :meth:`send` raises an error for a larger one.
        :param process: the id of the peer's process and its start time, in clock ticks. Once it has
            ended, this worker no longer connects to the peer: another program may have its port. Zeros if
            the process is unknown, or on another host.
        :raises TransportError: the endpoint is invalid, or the key is missing, unexpected or invalid.
        """

    def forget(self, peer: int) -> None:
        """Close the connections with a peer and refuse new ones. An unknown peer is ignored."""

    def reject(self, peer: int, reason: str) -> None:
        """End the connections with a peer that has sent an invalid message."""

    def renew(self, certificates: Certificates) -> None:
        """Show other certificates on new connections.

        :raises TransportError: they have another identity, or the transport has no certificates.
        """

    def revoke(self, names: list[str]) -> None:
        """Set the identities and serial numbers that are revoked, and end open connections with them.

        :raises TransportError: the transport has no certificates.
        """

    def send(self, peer: int, parts: Iterable[Buffer], reply: bool) -> None:
        """Send a message; for tests. The buffers must not change until the message is sent.

        Messages of fewer than 64 KiB that one thread sends to a peer arrive in the order in which they
        were sent. Larger ones may arrive later than messages sent after them.

        :raises TransportError: the peer is unknown or lost.
        """

    def receive(
        self, timeout: float | None = None
    ) -> tuple[str, int, list[memoryview], str] | None:
        """Return the next event, for tests: its kind, peer, parts, reason.

        The kinds are "message", "lost", "found" and "unsent".

        :returns: the event; None after ``timeout`` seconds without one, or once the transport is closed.
        """

    def close(self, linger: float) -> None:
        """Close all connections. A second call does nothing.

        :param linger: seconds to wait until queued messages are sent.
        """

    def metrics(self) -> dict[str, str]:
        """Return the transport's metrics, as text."""

    def __rpc_transport__(self) -> object:
        """Return the capsule through which a C++ agent uses the transport."""

def make_keys(fips: bool = False) -> tuple[bytes, bytes]:
    """Make the key pair of one session: the public key as 40 characters (Z85), the secret one in DER.

    :param fips: whether to make keys of ECDSA (P-256), with OpenSSL's FIPS provider, in place of keys of
        Ed25519.
    :raises TransportError: OpenSSL cannot make a key, or has no FIPS provider.
    """
