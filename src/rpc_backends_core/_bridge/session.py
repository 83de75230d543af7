"""What one ``init_rpc`` holds until its agent is destroyed: the store, the group, the agents."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from rpc_backends_core import _starting
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._bridge.rendezvous import meet
from rpc_backends_core._errors import StoreError
from rpc_backends_core._handlers import reporting_wrong_agent
from rpc_backends_core._process_state import STATE

if TYPE_CHECKING:
    from rpc_backends_core._group import Group
    from rpc_backends_core._record import ResolvedBackend

#: The timeout of stores and exchanges if the program asks for none: torch's maximum, 24 days.
NEVER = timedelta(milliseconds=2**31 - 1)
#: Seconds that the host of the store waits for the other workers to disconnect. They need no longer
#: than their agents take to shut down.
_HOST_GRACE_PERIOD = 5.0
#: The key and the length of a group's id.
_ID_KEY, _ID_LENGTH = "rpc_backends_group_id", 16
#: Seconds between two rendezvous attempts while the previous host closes its store.
_HOST_PAUSE = 0.05


class Session:
    """One worker's membership in one group, from the rendezvous until its agent is destroyed.

    :param join_timeout: seconds to wait for the group to be complete.
    :param store: the caller's store, if it provides one; the caller then closes it.
    :ivar group: the group, for a backend of an installed package. None for other backends: their
        workers meet as in plain torch, so not all of them need this package.
    """

    def __init__(
        self,
        resolved: ResolvedBackend,
        name: str,
        rank: int,
        world_size: int | None,
        join_timeout: float,
        store: Any = None,
    ) -> None:
        self.resolved = resolved
        self.name = name
        self.rank = rank
        self.world_size = world_size or None
        self.init_method: str = resolved.options.init_method
        self.timeout = float(resolved.options.rpc_timeout)  # 0 means never
        self.agents: list[Any] = []
        self.group: Group | None = None
        self._process = os.getpid()
        self._join_timeout = join_timeout
        self._asked_world_size = world_size
        self._store = store
        self._shared_store: Any = None  # the one that the backend gets
        self._group_id = ""
        self._rendezvous: Any = None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork; the session belongs to the parent process."""
        return os.getpid() != self._process

    def start(self) -> None:
        """Meet the other workers and start the agent. A failed start is undone completely."""
        STATE.session = self
        try:
            store = self._store if self._store is not None else self._open_store()
            self._shared_store = store
            agent = self._init_backend(store)
            with reporting_wrong_agent(self.resolved, agent):
                torch_internals.init_rpc_states(agent)
        except BaseException as error:
            STATE.session = None
            self._abandon(error)
            raise

    def group_id(self) -> str:
        """Return a short text that all workers of this group have, and no worker of another group.

        The first call may ask the store.

        :raises StoreError: the store is lost, or does not answer.
        """
        if not self._group_id and self.group is not None and self.group.token is not None:
            self._group_id = self.group.token[:_ID_LENGTH]
        elif not self._group_id and self._shared_store is not None:
            from rpc_backends_core._group import StoreAccess

            # The workers come one after the other, so the first one chooses.
            fresh = secrets.token_hex(_ID_LENGTH // 2)
            chosen = StoreAccess(self._shared_store).ask(
                lambda store: bytes(store.compare_set(_ID_KEY, "", fresh))
            )
            self._group_id = chosen.decode(errors="replace")[:_ID_LENGTH]
        return self._group_id

    def close(self, *, together: bool) -> None:
        """Leave the group and release the store; called when the agent has been destroyed.

        :param together: whether the other workers of a static group are leaving too.
        """
        group, self.group = self.group, None
        if group is not None:
            group.end(together=together)
            # Closing a store that other workers still use makes them fail.
            grace_period = _HOST_GRACE_PERIOD if together else 0.0
            if self._hosts_store() and not group.wait_until_ended(grace_period):
                STATE.kept_stores.append((self.init_method, self._store, self._rendezvous))
            elif self.world_size is None and group.is_over():
                _release_kept_stores()
        self._let_go()

    def report_failed_shutdown(self, error: BaseException) -> None:
        """Tell the other workers of a static group, which would wait for this one, that it failed."""
        from rpc_backends_core._errors import GroupError

        # An error of the group has reached all its workers. A lost store reaches none.
        if self.group is not None and not isinstance(error, GroupError):
            with contextlib.suppress(RuntimeError):
                self.group.fail(
                    f"RPC worker {self.name!r} (rank {self.rank}) failed in shutdown(), so the others do "
                    # torch's words: programs and torch's test suites match them
                    f"not wait for it (timed out in _all_gather): {type(error).__name__}: {error}"
                )

    # --- starting ---------------------------------------------------------------------------------

    def _init_backend(self, store: Any) -> Any:
        """Return the backend's agent. If the group is replaced meanwhile, join the next group."""
        if self.group is None:
            return _starting.init_backend(self.resolved, (), self._arguments(store))
        from rpc_backends_core._group import ReplacedGroupError, logger

        while True:
            try:
                return _starting.init_backend(self.resolved, (), self._arguments(store))
            except ReplacedGroupError as error:
                logger.info("%s", error)
                traceback.clear_frames(error.__traceback__)
            self.group.end()
            self._shared_store = store = self._join(self._store).store

    def _arguments(self, store: Any) -> dict[str, Any]:
        """Return the arguments for the backend's init handler."""
        arguments = {
            "store": store,
            "name": self.name,
            "rank": self.rank,
            "world_size": self._asked_world_size,
            "rpc_backend_options": self.resolved.options,
        }
        if self.resolved.backend.takes_group:
            arguments["group"] = self.group
        return arguments

    def _open_store(self) -> Any:
        """Run the rendezvous and return the store for the backend."""
        if self.rank != 0:
            # Free the ports of stores this process hosted for earlier groups: another process may
            # need one now. A dynamic group that we rejoin still uses its store.
            _release_kept_stores(all_but=self.init_method if self.world_size is None else None)
        if self.resolved.record.source == "plugin":
            store = self._form_group()
        else:
            store = torch_internals.numbered_store(self._meet(None), self._rendezvous, self.rank)
        torch_internals.set_profiler_rank(self.rank)
        return store

    def _form_group(self) -> Any:
        end = time.monotonic() + _HOST_GRACE_PERIOD
        store = None
        while True:
            try:
                store = self._meet(self._join_timeout)
                group = self._join(store)
            except dist.DistNetworkError as error:
                # The host of the previous group's store is still closing it: its port is not free
                # yet, or we connected to it just before it closed.
                if time.monotonic() > end:
                    # The cause would add only torch's C++ backtrace.
                    raise StoreError(self._why_no_group(store, error)) from None
                self._let_go()
                time.sleep(_HOST_PAUSE)
                continue
            return group.store

    def _why_no_group(self, store: Any, error: Exception) -> str:
        from rpc_backends_core._group.waiting import lost_store

        # Only a host, which has rank 0, listens. A rank that comes from RANK is not known here yet.
        text = str(error) if store is None and "server socket" in str(error) else ""
        if "EADDRINUSE" in text:
            reason, remedy = "something else uses that port", ", or end the process that has it"
        elif "EACCES" in text:  # a port below 1024
            reason, remedy = "this user may not use that port", ""
        else:
            return lost_store(store, error)
        return (
            f"RPC worker {self.name!r} (rank 0) cannot host the group's store at {self.init_method}: "
            f"{reason}. Choose another port, in MASTER_PORT or in init_method{remedy}."
        )

    def _join(self, store: Any) -> Group:
        """Join the group that is forming on the raw store."""
        from rpc_backends_core._group import join_group

        fixed_id = torch_internals.fixed_worker_id()
        self._group_id = ""
        self.group = join_group(
            store,
            self.name,
            self.rank,
            self.world_size,
            backend=self.resolved.name,
            timeout=self.timeout or NEVER.total_seconds(),
            fixed_id=fixed_id,
            join_timeout=self._join_timeout,
            terms=self.resolved.hooks.rpc_backends_terms(backend=self.resolved.name),
        )
        if fixed_id is None:
            torch_internals.init_autograd(self.group.autograd_id)
        if self.world_size is not None:
            torch_internals.forget_gathers()
        return self.group

    def _meet(self, limit: float | None) -> Any:
        """Run the rendezvous and return the raw store."""
        meeting = meet(self.init_method, self.name, self.rank, self.world_size, limit)
        self.rank = meeting.rank
        if self.rank == 0:
            _release_kept_stores()  # torch shares one server per port; we now hold it
        meeting.store.set_timeout(timedelta(seconds=self.timeout) if self.timeout else NEVER)
        self._store, self._rendezvous = meeting.store, meeting.iterator
        return meeting.store

    # --- stopping --------------------------------------------------------------------------------

    def _abandon(self, error: BaseException) -> None:
        """Undo a failed start: stop the agent, close the store, tell the workers that wait for us."""
        if torch_internals.has_current_agent():
            torch_internals.stop_failed_agent()
        STATE.running = None
        group, self.group = self.group, None
        if group is not None:
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                if isinstance(error, ValueError):
                    group.fail(str(error), "ValueError")
                else:
                    group.fail(
                        f"worker {self.name!r} (rank {self.rank}) failed to start: "
                        f"{type(error).__name__}: {error}"
                    )
            group.end()
            if self._hosts_store():
                group.wait_until_ended(_HOST_GRACE_PERIOD)  # they still read the reason
        self._let_go()
        # The traceback's frames would keep stores and agents (sockets and threads) alive for as long
        # as the program keeps the exception.
        traceback.clear_frames(error.__traceback__)

    def _hosts_store(self) -> bool:
        """Return whether this process hosts a store that other workers connect to."""
        if self.rank != 0 or self.init_method.startswith("file:"):
            return False
        return not torch_internals.launcher_hosts_store(self.init_method)

    def _let_go(self) -> None:
        self.agents.clear()
        self._store = self._shared_store = self._rendezvous = None


def _keep_in_child() -> None:
    """Keep the store open in a forked child: closing a FileStore counts as a worker's end."""
    if STATE.session is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(STATE.session))


os.register_at_fork(after_in_child=_keep_in_child)


def start_session(
    resolved: ResolvedBackend,
    name: str,
    rank: int,
    world_size: int | None,
    join_timeout: float,
    store: Any = None,
) -> None:
    """Meet the other workers and start the agent; see :class:`Session`."""
    Session(resolved, name, rank, world_size, join_timeout, store).start()


def current_session() -> Session | None:
    """Return the session that is starting or running; None if RPC is not initialised."""
    session: Session | None = STATE.session
    return session


def _release_kept_stores(all_but: str | None = None) -> None:
    """Release stores that were kept open for other workers."""
    STATE.kept_stores[:] = [kept for kept in STATE.kept_stores if kept[0] == all_but]
