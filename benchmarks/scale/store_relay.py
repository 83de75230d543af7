"""Between workers and the store of their group: passes everything on, and counts what each worker asks.

Counted is what is on the wire, so that requests which torch makes in C++ count like all others. Each
worker has a port of its own here, which is how it is told from the others.
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

#: How many may wait to be accepted: more workers than ever start at once.
_BACKLOG = 4096
_CHUNK = 1 << 16  # bytes
#: Rounds of the event loop after which it has read what had arrived before the first.
_ROUNDS = 50


@dataclass
class Requests:
    """What one worker has asked of the store.

    :ivar kinds: how often, by kind, as the store's protocol has them: a ``get`` of torch's client, say,
        is a wait and a get.
    :ivar connections: how many it has made.
    :ivar sent: bytes to the store.
    :ivar received: bytes from it.
    """

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    connections: int = 0
    sent: int = 0
    received: int = 0

    def copy(self) -> Requests:
        """Return these figures as they are now."""
        return Requests(self.kinds.copy(), self.connections, self.sent, self.received)

    def since(self, before: Requests) -> Requests:
        """Return what has been added to ``before``."""
        return Requests(
            self.kinds - before.kinds,
            self.connections - before.connections,
            self.sent - before.sent,
            self.received - before.received,
        )


class StoreRelay:
    """A store for a group, and a port to it for each worker.

    :param size: how many workers.
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
        """Return the relay, which listens."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop, and end the store."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        del self._store

    def url(self, worker: int) -> str:
        """Return the init method for one worker."""
        return f"tcp://127.0.0.1:{self._ports[worker]}"

    def requests(self) -> list[Requests]:
        """Return what each worker has asked until now; they must be at rest.

        :raises UnknownRequestError: the relay has lost count.
        """
        return self._run(self._copies())

    # --- in the thread of the loop -------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> list[int]:
        self._servers = [
            await asyncio.start_server(
                functools.partial(self._serve, one), "127.0.0.1", backlog=_BACKLOG
            )
            for one in self._requests
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
        return [one.copy() for one in self._requests]

    async def _serve(
        self, one: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._clients.add(me)
        me.add_done_callback(self._clients.discard)
        ends = contextlib.suppress(ConnectionError, asyncio.CancelledError)
        with contextlib.closing(writer), ends:
            try:
                await self._relay(one, reader, writer)
            except Exception as error:
                self._failures.append(error)
                raise

    async def _relay(
        self, one: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # Whoever only looks whether somebody listens is no client of the store.
        if not (data := await reader.read(_CHUNK)):
            return
        one.connections += 1
        from_store, to_store = await asyncio.open_connection("127.0.0.1", self._store.port)
        answers = asyncio.ensure_future(_pass_back(one, from_store, writer))
        parser = Parser()
        try:
            with contextlib.closing(to_store):
                while data:
                    one.sent += len(data)
                    one.kinds.update(parser.feed(data))
                    to_store.write(data)
                    data = await reader.read(_CHUNK)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)


async def _pass_back(
    one: Requests, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while data := await reader.read(_CHUNK):
        one.received += len(data)
        writer.write(data)
