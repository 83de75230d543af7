"""UCX's context, worker and endpoints as a transport; load UCX's libraries first (``library.native``)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

class TransportError(RuntimeError):
    """UCX cannot do what was asked."""

class Certificates:
    """As that of ``rpc_backend_zeromq._native``; see ``rpc_backends_agents.engine.certificates``."""

    def __init__(
        self, chain: bytes, secret_key: bytes, authorities: bytes, fips: bool = False
    ) -> None: ...
    @property
    def identity(self) -> str: ...
    @property
    def serial(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def expires(self) -> int: ...
    @property
    def chain(self) -> bytes: ...
    def sign(self, data: bytes) -> bytes: ...
    def check(self, chain: bytes, signature: bytes, data: bytes) -> tuple[str, str, bytes]: ...

class Transport:
    """The transport in C++. All methods may be called on any thread.

    :param config: UCX's settings by name, without ``UCX_``.
    :param max_message: limit for the parts of one message together, in bytes.
    :param poll_time: seconds to poll after a message before sleeping.
    :param handshake_timeout: how many seconds a peer may take to answer a greeting.
    :param rendezvous: the receiver fetches parts that have more bytes than this; 0 lets UCX decide.
    :param device_memory: UCX's names of the memory that it moves itself, by torch's types of devices.
    :param certificates: with which this worker proves who it is; None: workers have no certificates.
    :param on_unknown_proof: called with the proof of an unknown process and the seconds since it greeted.
    :param on_refused: called with a line to log.
    """

    def __init__(
        self,
        *,
        config: Sequence[tuple[str, str]],
        max_message: int,
        poll_time: float,
        handshake_timeout: float,
        rendezvous: int,
        device_memory: Mapping[str, str],
        certificates: Certificates | None = None,
        on_unknown_proof: Callable[[bytes, float], int | None] | None = None,
        on_refused: Callable[[str], object] | None = None,
    ) -> None: ...
    def address(self) -> bytes: ...
    def start(self, self_id: int, connection_key: bytes) -> None: ...
    def learn(
        self,
        peer: int,
        address: bytes,
        our_proof: bytes,
        their_proof: bytes,
        process: tuple[int, int] = (0, 0),
        max_message: int = ...,
        identity: str = "",
        statements: tuple[bytes, bytes] = ...,
    ) -> None:
        """Add a peer.

        :param identity: that of its certificate, if workers have certificates.
        :param statements: what this worker and the peer sign in greetings.
        """

    def renew(self, certificates: Certificates) -> None:
        """Show other certificates on new connections.

        :raises TransportError: they have another identity, or the transport has no certificates.
        """

    def revoke(self, names: list[str]) -> None:
        """Set the identities and serial numbers that are revoked, and end open connections with them.

        :raises TransportError: the transport has no certificates.
        """

    def forget(self, peer: int) -> None: ...
    def reject(self, peer: int, reason: str) -> None: ...
    def send(
        self, peer: int, parts: Iterable[Buffer], reply: bool, device: str | None = None
    ) -> None: ...
    def receive(
        self, timeout: float | None = None
    ) -> tuple[str, int, list[memoryview], str] | None: ...
    def close(self, linger: float) -> None: ...
    def metrics(self) -> dict[str, str]: ...
    def __rpc_transport__(self) -> Any: ...

def capture_log(also_print: bool) -> None: ...
def setting_names() -> set[str]: ...
def resources(config: Sequence[tuple[str, str]]) -> list[str]: ...
def version() -> str: ...
