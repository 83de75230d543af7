"""A relay between workers and the store of their group that counts each worker's requests.

It counts requests on the wire, so requests from torch's C++ code are included. Each worker connects to
another port of the relay, which identifies the worker.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from store_protocol import Parser

T = TypeVar("T")

#: Length of the queue for new connections: more than the number of workers that start at once.
_BACKLOG = 4096
_CHUNK = 1 << 16  # bytes
#: After this many rounds the event loop has read everything that had arrived before the first.
_ROUNDS = 50


@dataclass
class Requests:
    """The requests of one worker to the store.

    :ivar kinds: number of requests by kind, in the store's protocol: for example, a ``get`` of torch's
        client is a wait and a get.
    :ivar connections: number of connections made.
    :ivar sent: bytes sent to the store.
    :ivar received: bytes received from the store.
    """

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    connections: int = 0
    sent: int = 0
    received: int = 0

    def copy(self) -> Requests:
        """Return a copy of the present figures."""
        return Requests(self.kinds.copy(), self.connections, self.sent, self.received)

    def since(self, before: Requests) -> Requests:
        """Return what was added since ``before``."""
        return Requests(
            self.kinds - before.kinds,
            self.connections - before.connections,
            self.sent - before.sent,
            self.received - before.received,
        )


class StoreRelay:
    """A store for a group, with a port for each worker.

    :param size: the number of workers.
    """

    def __init__(self, size: int) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._requests = [Requests() for _ in range(size)]
        self._failures: list[BaseException] = []
        self._clients: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store-relay")
        self._thread.start()
        self._ports = self._run(self._listen())

    def __enter__(self) -> StoreRelay:
        """Return the relay, which is listening."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop the relay and the store."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        del self._store

    def url(self, worker: int) -> str:
        """Return the init method for one worker."""
        return f"tcp://127.0.0.1:{self._ports[worker]}"

    def requests(self) -> list[Requests]:
        """Return the requests of each worker so far; no request may be in progress.

        :raises UnknownRequestError: the relay met an unknown request and could not continue to count.
        """
        return self._run(self._copies())

    # --- in the thread of the loop -------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> list[int]:
        self._servers = [
            await asyncio.start_server(
                functools.partial(self._serve, request), "127.0.0.1", backlog=_BACKLOG
            )
            for request in self._requests
        ]
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _copies(self) -> list[Requests]:
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        if self._failures:
            raise self._failures[0]
        return [request.copy() for request in self._requests]

    async def _serve(
        self, requests: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._clients.add(me)
        me.add_done_callback(self._clients.discard)
        ends = contextlib.suppress(ConnectionError, asyncio.CancelledError)
        with contextlib.closing(writer), ends:
            try:
                await self._relay(requests, reader, writer)
            except Exception as error:
                self._failures.append(error)
                raise

    async def _relay(
        self, requests: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # A connection without data only tested whether the port is open. It is not counted.
        if not (data := await reader.read(_CHUNK)):
            return
        requests.connections += 1
        from_store, to_store = await asyncio.open_connection("127.0.0.1", self._store.port)
        answers = asyncio.ensure_future(_pass_back(requests, from_store, writer))
        parser = Parser()
        try:
            with contextlib.closing(to_store):
                while data:
                    requests.sent += len(data)
                    requests.kinds.update(parser.feed(data))
                    to_store.write(data)
                    data = await reader.read(_CHUNK)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)


async def _pass_back(
    requests: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while data := await reader.read(_CHUNK):
        requests.received += len(data)
        writer.write(data)
