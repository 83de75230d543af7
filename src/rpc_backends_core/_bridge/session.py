"""What one ``init_rpc`` holds until its agent is gone: the store, the group, the agents."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_core import _settings as settings
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import GroupTimeoutError

if TYPE_CHECKING:
    from rpc_backends_core._group import Group

#: What a store and an exchange are given where the program says "never": torch's own "never", 24 days.
NEVER = timedelta(milliseconds=2**31 - 1)
#: Seconds the host of the store waits for the others to have left it; they are at most an agent's
#: shutdown behind.
_HOST_PATIENCE = 5.0
#: Seconds between two looks whether the host listens.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
#: Seconds between two attempts to meet while the last host closes its store.
_HOST_PAUSE = 0.05


class Session:
    """One worker's membership in one group, from the rendezvous to the end of the agent.

    :param store: given if the caller brings the store; it is then the caller's to close.
    """

    def __init__(
        self,
        backend: str,
        name: str,
        rank: int,
        world_size: int | None,
        options: Any,
        store: Any = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.rank = rank
        self.world_size = world_size or None
        self.init_method: str = options.init_method
        self.timeout = rpc_seconds(options.rpc_timeout)
        self.agents: list[Any] = []
        self.group: Group | None = None
        self._store = store
        self._rendezvous: Any = None

    def open(self) -> Any:
        """Meet the other workers and return the store for the backend."""
        if self.rank != 0:
            # A store that this process hosted for an earlier group would keep its port from the
            # process that hosts one now. A dynamic group that we come back to still uses it.
            _release(all_but=self.init_method if self.world_size is None else None)
        if not self._forms_group():
            return self._torchs_way(self._meet())
        end = time.monotonic() + _HOST_PATIENCE
        while True:
            try:
                return self._form_group(self._meet())
            except dist.DistNetworkError:
                # The process that hosted the store of the last group is closing it: its port is not
                # free yet, or we were connected to it in its last moment.
                if time.monotonic() > end:
                    raise
                self._let_go()
                time.sleep(_HOST_PAUSE)

    def _meet(self) -> Any:
        """Rendezvous, and return the raw store."""
        store = self._rendezvous_store()
        if self.rank == 0:
            _release()  # torch gives one port one server, and we have it now
        store.set_timeout(timedelta(seconds=self.timeout) if self.timeout else NEVER)
        self._store = store
        return store

    def _rendezvous_store(self) -> Any:
        scheme = self.init_method.partition(":")[0]
        if self.rank == -1 and scheme == "env" and "RANK" in os.environ:
            self.rank = int(os.environ["RANK"])
        # torch's own schemes take a timeout; one that a program has registered may not
        timed = self._forms_group() and scheme in ("env", "tcp")
        limit = settings.join_timeout()
        extra = {"timeout": timedelta(seconds=limit)} if timed else {}
        try:
            if timed:
                # A TCP store that is told the size of the group waits for that many clients, by
                # count alone; the group's own formation knows who is missing.
                url = self.init_method if self.rank == -1 else _tcp(self.init_method)
                if self.rank > 0:
                    _wait_for_host(url, limit)
                self._rendezvous = _rendezvous(url, self.rank, None, **extra)
            else:
                self._rendezvous = _rendezvous(self.init_method, self.rank, self.world_size)
            store, rank, _ = next(self._rendezvous)
        except dist.DistError as error:
            if not timed or "timed out" not in str(error).lower():
                raise
            raise GroupTimeoutError(
                f"RPC worker {self.name!r} (rank {self.rank}) waited {limit:g} s for the others at "
                f"{self.init_method}: {str(error).partition(chr(10))[0]} Start every worker with the "
                f"same world_size and address; {settings.JOIN_TIMEOUT}=SECONDS sets how long they wait."
            ) from error
        if self.world_size is not None:
            self.rank = rank
        return store

    def _forms_group(self) -> bool:
        # Torch's own and old-style backends meet as they always have: their workers need not all have
        # this package.
        return default_registry().entry(self.backend).source == "plugin"

    def _form_group(self, store: Any) -> Any:
        from rpc_backends_core._group import join_group

        self.group = join_group(
            store,
            self.name,
            self.rank,
            self.world_size,
            backend=self.backend,
            timeout=self.timeout or NEVER.total_seconds(),
            fixed_id=fixed_worker_id(),
        )
        if fixed_worker_id() is None:
            dist_autograd._init(self.group.autograd_id)
        return self.group.store

    def _torchs_way(self, store: Any) -> Any:
        # As torch does: the store must outlive this call for workers that are not through yet.
        rpc.rendezvous_iterator = self._rendezvous
        with rpc._init_counter_lock:
            store = dist.PrefixStore(f"rpc_prefix_{rpc._init_counter}", store)
            rpc._init_counter += 1
        dist_autograd._init(self.rank)
        return store

    def close(self, *, together: bool) -> None:
        """Leave the group and let go of the store; called when the agent is gone.

        :param together: the other workers of a static group are leaving too.
        """
        group, self.group = self.group, None
        if group is not None:
            group.end()
            # If a store goes while others still use it, they fail.
            patience = _HOST_PATIENCE if together else 0.0
            if self._hosts_store() and not group.wait_until_ended(patience):
                _lingering.append((self.init_method, self._store, self._rendezvous))
            elif self.world_size is None and group.is_over():
                _release()
        self._let_go()

    def abandon(self, error: BaseException) -> None:
        """Leave a group that this worker failed to join, telling those who wait for it."""
        group, self.group = self.group, None
        if group is not None:
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                kind = "ValueError" if isinstance(error, ValueError) else "GroupError"
                group.fail(
                    str(error)
                    if isinstance(error, ValueError)
                    else f"worker {self.name!r} (rank {self.rank}) failed to start: "
                    f"{type(error).__name__}: {error}",
                    kind,
                )
            group.end()
            if self._hosts_store():
                group.wait_until_ended(_HOST_PATIENCE)  # the others have yet to read why
        self._let_go()

    def _hosts_store(self) -> bool:
        """Return whether other workers are connected to a store in this process."""
        elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return self.rank == 0 and not elsewhere and not self.init_method.startswith("file:")

    def _let_go(self) -> None:
        self.agents.clear()
        self._store = self._rendezvous = None


def _rendezvous(init_method: str, rank: int, world_size: int | None, **extra: Any) -> Any:
    """Return torch's rendezvous; its public function cannot say that a group is dynamic."""
    if world_size is not None:
        return dist.rendezvous(init_method, rank=rank, world_size=world_size, **extra)
    module = sys.modules["torch.distributed.rendezvous"]
    return module._rendezvous_helper(init_method, rank, None, **extra)


def _tcp(init_method: str) -> str:
    """Return the ``tcp://`` address that an ``env://`` one stands for; the size is not asked for then.

    Where the environment lacks the address, torch's own handler is left to say so.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not init_method.startswith("env:") or not host or not port or not port.isdigit():
        return init_method
    query = init_method.partition("?")[2]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}{'?' if query else ''}{query}"


def _wait_for_host(url: str, limit: float) -> None:
    """Wait until something listens at a ``tcp://`` address, or for ``limit`` seconds at most.

    Torch's own client, if the host does not listen when it first tries, sleeps for up to a second.
    """
    address = urlsplit(url)
    if address.scheme != "tcp" or not address.hostname or not address.port:
        return
    end = time.monotonic() + limit
    pause = _SHORTEST_PAUSE
    while time.monotonic() < end:
        try:
            socket.create_connection((address.hostname, address.port), timeout=1).close()
        except (ConnectionRefusedError, TimeoutError):
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        except OSError:
            return  # a name that means nothing, say: torch's client words it
        else:
            return


def rpc_seconds(rpc_timeout: float) -> float:
    """Return a timeout in seconds; 0 stays 0 and means never."""
    return float(rpc_timeout)


def fixed_worker_id() -> int | None:
    """Return the worker id that torch has fixed for this process, None in a fresh process.

    The autograd container takes the first id it is given and refuses any other ("Container is already
    initialized with worker_id").
    """
    try:
        return (int(dist_autograd._get_max_id()) >> 48) & 0xFFFF
    except RuntimeError:
        return None


@contextlib.contextmanager
def begin(session: Session) -> Iterator[None]:
    """Make ``session`` current; it stays so until its agent is gone, or ends here if it fails."""
    _current.append(session)
    try:
        yield
    except BaseException:
        _current.remove(session)
        raise


def current() -> Session | None:
    """Return the session that is starting or running in this process."""
    return _current[-1] if _current else None


def agents() -> list[Any]:
    """Return the agents of the running session: the backend's own, and what a hook put before it."""
    session = current()
    found = list(session.agents) if session is not None else []
    if rpc.api._is_current_rpc_agent_set():
        found.append(rpc.api._get_current_rpc_agent())
    return found


def end_current(*, together: bool) -> None:
    """Close the running session, if there is one; see :meth:`Session.close`."""
    while _current:
        _current.pop().close(together=together)


def current_group(store: Any) -> Group | None:
    """Return the group that ``init_rpc`` formed for ``store``; None if the caller brought the store."""
    session = current()
    group = session.group if session is not None else None
    return group if group is not None and group.store is store else None


_current: list[Session] = []
#: Stores that this process hosts for others beyond its own membership: (init method, what holds them).
_lingering: list[tuple[Any, ...]] = []


def _release(all_but: str | None = None) -> None:
    """Let go of stores that were kept for others."""
    _lingering[:] = [kept for kept in _lingering if kept[0] == all_but]
