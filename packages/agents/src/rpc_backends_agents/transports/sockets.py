"""An example transport over plain TCP. Like TensorPipe, it accepts every process that can connect."""

import json
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic

from rpc_backends_agents.transport import Inbox, Transport

GREETING_SECONDS = 2.0  # time limit for a new connection to send its worker id


class SocketTransport(Transport):
    """A worker connects to the peers that it calls, and replies on the connections of its callers."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(None)  # the program may have called socket.setdefaulttimeout
        self._acceptor = Thread(target=self._accept, daemon=True)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._lock = Lock()  # for the next two
        self._links: dict[tuple[int, bool], tuple[socket.socket, Thread]] = {}  # peer, peer_calls
        self._closed = False

    def listen(self, worker_id: int, name: str, inbox: Inbox) -> str:
        self._me, self._inbox = struct.pack("<i", worker_id), inbox
        self._acceptor.start()
        return json.dumps(self._listener.getsockname())

    def learn(self, peer: int, name: str, address: str) -> None:
        self._addresses[peer] = tuple(json.loads(address))

    def send(self, peer: int, parts: Sequence[memoryview], reply: bool) -> None:
        if (peer, reply) not in self._links:
            if reply:
                raise ConnectionError("the worker that waits for this reply is gone")
            connection = socket.create_connection(self._addresses[peer])
            try:
                connection.sendall(self._me)
                self._link(connection, peer, peer_calls=False)
            except (OSError, RuntimeError):
                connection.close()  # the transport was closed meanwhile, or no thread is available
                raise
        head = struct.pack(f"<I{len(parts)}Q", len(parts), *map(len, parts))
        for part in (memoryview(head), *parts):
            self._links[peer, reply][0].sendall(part)

    def forget(self, peer: int) -> None:
        for key in ((peer, False), (peer, True)):
            with suppress(KeyError, OSError):  # no connection, or it has just ended
                self._links[key][0].shutdown(socket.SHUT_RDWR)

    def close(self, linger: float) -> None:
        with self._lock:
            self._closed = True  # from now on _link() raises
        self._addresses.clear()  # a late send() fails
        with suppress(OSError, RuntimeError):  # closed, or never listened
            self._listener.shutdown(socket.SHUT_RDWR)
            self._acceptor.join()
        self._listener.close()
        end = monotonic() + linger
        for connection, reader in list(self._links.values()):
            with suppress(OSError):  # it has just ended
                connection.shutdown(socket.SHUT_WR)  # sent messages arrive; then the peer closes
                reader.join(end - monotonic())
                connection.shutdown(socket.SHUT_RDWR)  # it has not closed in time
            reader.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(GREETING_SECONDS)
                try:
                    self._link(connection, int.from_bytes(receive(connection, 4), "little"), True)
                except (OSError, RuntimeError):
                    connection.close()  # not a worker, or no thread available

    def _link(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = Thread(target=self._read, args=(connection, peer, peer_calls), daemon=True)
        with self._lock:
            if self._closed:
                raise ConnectionError("the transport is closed")
            self._links[peer, peer_calls] = connection, reader
            try:
                reader.start()
            except RuntimeError:
                del self._links[peer, peer_calls]
                raise

    def _read(self, connection: socket.socket, peer: int, peer_calls: bool) -> None:
        try:
            while True:
                (count,) = struct.unpack("<I", receive(connection, 4))
                sizes = struct.unpack(f"<{count}Q", receive(connection, 8 * count))
                self._inbox.deliver(peer, [receive(connection, size) for size in sizes])
        except Exception as error:  # the connection ended, or a message was too large for memory
            connection.close()  # from now on send() raises
            if not peer_calls:
                self._inbox.lost(peer, str(error) or type(error).__name__)
            with self._lock:
                if self._links.get((peer, peer_calls), (None,))[0] is connection:  # not a new one
                    del self._links[peer, peer_calls]
            if not peer_calls:
                self._inbox.found(peer)  # the next call connects again


def receive(connection: socket.socket, size: int) -> bytearray:
    """Return the next ``size`` bytes. Allocates as they arrive: a peer may state a false ``size``."""
    data = bytearray()
    while len(data) < size and (piece := connection.recv(min(size - len(data), 1 << 20))):
        data += piece
    if len(data) < size:
        raise ConnectionResetError("the worker has closed the connection")
    return data
