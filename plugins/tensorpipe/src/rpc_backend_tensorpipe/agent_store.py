"""Connects a TensorPipe agent (C++) to the store of its group.

Torch's agent uses store keys to find its peers and to hold barriers when it stops (`names/ID`,
`addrs/NAME`, `shutdown/..._ID_N`; seen in torch 2.13). Here each agent gets a private store in its own
process. Every key that the agent reads is already in it, so a start makes a constant number of
requests to the group's store. Torch numbers barriers per process; here they are numbered per group.

The private store is torch's `HashStore`, so the agent never calls Python. A Python store would need
the GIL while the agent holds its locks, and another thread that holds the GIL may be waiting for those
locks (dropping an RRef does that).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import rpc

from rpc_backends_core.spi import NEVER, Group, stored

#: The most active calls that a worker may report.
_MOST_CALLS = 1 << 40
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.005


class AgentStore:
    """The private store of one agent.

    :ivar store: the store to pass to the agent.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = dist.HashStore()
        self.store.set_timeout(NEVER)

    def add_worker(self, name: str, worker_id: int) -> None:
        """Add a worker's name, for the agent to look up by id."""
        self.store.set(f"names/{worker_id}", name)

    def add_address(self, name: str, address: str) -> None:
        """Add a worker's address, for the agent to look up by name."""
        self.store.set(f"addrs/{name}", address)

    @property
    def has_own_address(self) -> bool:
        """Whether the agent has written the address that it listens on."""
        return bool(self.store.check([f"addrs/{self.name}"]))

    @property
    def own_address(self) -> str:
        """The address that the agent listens on; waits until the agent has written it."""
        return str(self.store.get(f"addrs/{self.name}").decode())


@contextmanager
def exchanging_addresses(engine: AgentStore, group: Group) -> Iterator[None]:
    """Exchange addresses with the other workers while the agent starts inside the block.

    One call of the agent both publishes its own address and waits for all others, so the exchange
    runs on a separate thread during the block.

    :raises GroupError: another worker failed; raised at the end of the block.
    """
    failures: list[BaseException] = []
    starting = threading.Event()
    starting.set()

    def exchange() -> None:
        own = engine.own_address
        if not starting.is_set():
            return
        addresses = [own] * len(group.members)
        try:
            addresses = stored.texts("exchange/2", group.exchange(own))
        except BaseException as error:
            failures.append(error)
        # After a failure any address will do: it only lets the agent's start return, and the caller
        # then stops the agent.
        for member, address in zip(group.members, addresses, strict=True):
            if member.name != engine.name:
                engine.add_address(member.name, address)

    thread = threading.Thread(target=exchange, name="rpc-backends-addresses", daemon=True)
    thread.start()
    try:
        yield
    finally:
        starting.clear()
        if not engine.has_own_address:
            engine.add_address(engine.name, "")  # the agent failed before it listened
        thread.join()
    if failures:
        raise failures[0]


class Barriers:
    """Runs the barriers of an agent's ``join`` through the store of its group.

    At each barrier the agent writes its count of active calls to its private store and waits. A thread
    adds that count to the group's store and brings the group's total back to the private store.
    """

    def __init__(self, engine: AgentStore, group: Group) -> None:
        self._engine = engine.store
        self._group = group

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Run the barriers while the agent joins inside the block.

        :param timeout: seconds that each barrier waits for the other workers.
        :raises RuntimeError: a barrier failed; raised at the end of the block.
        """
        failures: list[BaseException] = []
        joining = threading.Event()
        joining.set()
        number = _next_barrier()

        def carry() -> None:
            nonlocal number
            while self._wait_for_agent(number, joining):
                own = int(self._engine.add(f"shutdown/ACTIVE_CALLS_ID_{number}", 0))
                total = 0
                if not failures:
                    try:
                        total = self._meet(own, timeout)
                    except BaseException as error:
                        failures.append(error)
                # After a failure the agent reads a total of 0 active calls, so its join returns.
                self._engine.add(f"shutdown/ACTIVE_CALLS_ID_{number}", total - own)
                self._engine.set(f"shutdown/READY_ID_{number}", "")
                number += 1

        thread = threading.Thread(target=carry, name="rpc-backends-barriers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            joining.clear()
            thread.join()
        if failures:
            raise failures[0]

    def _wait_for_agent(self, number: int, joining: threading.Event) -> bool:
        """Wait until the agent reaches barrier ``number``; return False if its join has ended."""
        key = f"shutdown/PROCESS_COUNT_ID_{number}"
        pause = _SHORTEST_PAUSE
        # HashStore cannot wait for a counter to change, so this polls, with growing pauses.
        while joining.is_set():
            if self._engine.check([key]) and self._engine.add(key, 0) > 0:
                return True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return False

    def _meet(self, active: int, timeout: float) -> int:
        """Meet all workers at a barrier; return the number of active calls in the whole group."""
        counts = self._group.exchange(active, timeout)
        if not all(type(count) is int and 0 <= count <= _MOST_CALLS for count in counts):
            raise stored.unsuitable("exchange/...", f"{stored.shown(counts)}, not numbers of calls")
        return sum(counts)


def _next_barrier() -> int:
    """Return the number that the next barrier of an agent in this process will have.

    Torch counts barriers per process and shows the count only in the keys that an agent writes. So
    this makes a temporary agent in a group of one worker and reads the key of its ``join``, which
    returns immediately (0.1 ms).
    """
    store = _KeyWatcher()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1)
    probe = rpc.TensorPipeAgent(store, "probe", 0, 1, options, {}, [])
    probe.join()
    probe.shutdown()
    return store.last_number + 1


class _KeyWatcher(dist.Store):
    """A store for an agent that is alone in its group; records the number of the last barrier."""

    def __init__(self) -> None:
        super().__init__()
        self.last_number = 0
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        self.last_number = int(key.rpartition("_")[2])
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        del key, expected
        return bytes(desired)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        del keys, timeout
