"""Between a TensorPipe agent in C++ and the store of its group.

Torch's agent finds its peers, and meets them when it stops, by keys that it writes into a store
(`names/ID`, `addrs/NAME`, `shutdown/..._ID_N`; seen in torch 2.13). Here it gets a store of its own in
this process. What it asks for is there already, so a start costs the group's store a constant number
of requests; and its barriers, which torch numbers per process, are numbered per group.

The store is torch's `HashStore`, and no Python is ever called from within the agent: it would need the
GIL while the agent holds its locks, and a thread that holds the GIL may wait for those (dropping an RRef
does).
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

from rpc_backends_core.spi import NEVER, STORE_PATIENCE, Group, stored, wait_for

#: Active calls of a whole group, at most.
_MOST_CALLS = 1 << 40
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.005


class AgentStore:
    """The private store of one agent.

    :ivar store: to be given to the agent.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.store = dist.HashStore()
        self.store.set_timeout(NEVER)

    def add_worker(self, name: str, worker_id: int) -> None:
        """Let the agent find the name of a worker."""
        self.store.set(f"names/{worker_id}", name)

    def add_address(self, name: str, address: str) -> None:
        """Let the agent find the address of a worker."""
        self.store.set(f"addrs/{name}", address)

    @property
    def own_address(self) -> str:
        """The address the agent listens on; it must have been started."""
        return str(self.store.get(f"addrs/{self.name}").decode())


@contextmanager
def exchanging_addresses(engine: AgentStore, group: Group) -> Iterator[None]:
    """Exchange the agents' addresses while the agent starts in the block.

    The agent tells its address and waits for those of all others within one call, so the exchange has a
    thread of its own for that long.

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
        # After a failure any address will do: the agent is let go, and stopped by whoever started it.
        for member, address in zip(group.members, addresses, strict=True):
            if member.name != engine.name:
                engine.add_address(member.name, address)

    thread = threading.Thread(target=exchange, name="rpc-backends-addresses", daemon=True)
    thread.start()
    try:
        yield
    finally:
        starting.clear()
        if not engine.store.check([f"addrs/{engine.name}"]):
            engine.add_address(engine.name, "")  # it failed before it listened
        thread.join()
    if failures:
        raise failures[0]


class Barriers:
    """The barriers of an agent's ``join``, held through the store of its group.

    In each one the agent counts its active calls and itself in its private store, then waits; a thread
    carries the count to the group and the total back.

    :param timeout: seconds that one barrier may take.
    """

    def __init__(self, engine: AgentStore, group: Group) -> None:
        self._engine = engine.store
        self._group = group
        self._passed = 0

    @contextmanager
    def held(self, timeout: float) -> Iterator[None]:
        """Hold barriers while the agent joins in the block.

        :param timeout: seconds a barrier waits for the others.
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
                # After a failure the agent is told that nobody has active calls, so it stops joining.
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
        """Wait until the agent has come to its barrier ``number``; False if it has stopped joining."""
        key = f"shutdown/PROCESS_COUNT_ID_{number}"
        pause = _SHORTEST_PAUSE
        # HashStore wakes nobody who waits for a counter, so this looks for it, less and less often.
        while joining.is_set():
            if self._engine.check([key]) and self._engine.add(key, 0) > 0:
                return True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return False

    def _meet(self, active: int, timeout: float) -> int:
        """Meet all workers; return how many calls are active in the whole group."""
        ask, prefix = self._group.access.ask, f"barrier/{self._passed}"
        self._passed += 1

        def meet(store: Any) -> bytes | None:
            store.add(f"{prefix}/active", active)
            if store.add(f"{prefix}/arrived", 1) == self._group.world_size:
                store.set(f"{prefix}/total", str(store.add(f"{prefix}/active", 0)))
            return wait_for(store, f"{prefix}/total", timeout, lambda: "the others to shut down")

        total = ask(meet, timeout + STORE_PATIENCE)
        if total is None:
            came = ask(lambda store: store.add(f"{prefix}/arrived", 0))
            raise RuntimeError(
                f"RPC worker {self._group.name!r} waited {timeout:g} s for the others to shut down, and "
                f"{came} of {self._group.world_size} came. All workers of a static group must call "
                "shutdown(); shutdown(graceful=False) does not wait for them."
            )
        return stored.number(f"{prefix}/total", total, _MOST_CALLS)


def _next_barrier() -> int:
    """Return the number that an agent of this process will give to its next barrier.

    Torch counts them in the process and shows the count only in the keys that an agent writes: so an
    agent that is alone in its group is asked to join, which ends at once (0.1 ms).
    """
    store = _KeyWatcher()
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1)
    probe = rpc.TensorPipeAgent(store, "probe", 0, 1, options, {}, [])
    probe.join()
    probe.shutdown()
    return store.last_number + 1


class _KeyWatcher(dist.Store):
    """A store for one agent that is alone: it notes the number of the last barrier."""

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
