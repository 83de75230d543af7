"""UCX's context, worker and endpoints as a transport; load UCX's libraries first (``library.native``)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

class TransportError(RuntimeError):
    """UCX cannot do what was asked."""

class Transport:
    """The transport in C++. All methods may be called on any thread.

    :param config: UCX's settings by name, without ``UCX_``.
    :param max_message: limit for the parts of one message together, in bytes.
    :param poll_time: seconds to poll after a message before sleeping.
    :param handshake_timeout: how many seconds a peer may take to answer a greeting.
    :param rendezvous: the receiver fetches parts that have more bytes than this; 0 lets UCX decide.
    :param device_memory: UCX's names of the memory that it moves itself, by torch's types of devices.
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
    ) -> None: ...
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
