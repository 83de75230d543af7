"""Where the members of this worker's group run, so that a dump can say what has become of a lost one.

A process that has ended has no socket to ask. So each worker that writes dumps publishes its host and its
process in the group's store, and looks up those of members that it cannot find.
"""

from __future__ import annotations

import json
import os
import socket
import weakref
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpc_backends_core.spi import Group, StoreAccess, StoreError, current_session
from rpc_backends_inspect import processes
from rpc_backends_inspect.workers import WorkerState

if TYPE_CHECKING:
    from rpc_backends_inspect.groups import InspectedGroup

_log = getLogger(__name__)
_KEY = "rpc_backends_inspect/process/{}"
#: Seconds that a request to the store may take, and seconds for a process that is lost to end.
_STORE = 2.0
_END = 1.0
#: The most members that are looked up at once, and the most bytes of what one has published.
_MOST = 16
_MOST_BYTES = 1000


class Peers:
    """The members of a group.

    :param group: None for a backend without one; then no process is known.
    """

    def __init__(self, group: Group | None) -> None:
        # Not the group's: a request that is late refuses further ones, and would refuse the group's.
        self._access = StoreAccess(group.store) if group is not None else None
        # The store must not stay open for as long as torch keeps the agent.
        self._group = weakref.ref(group, self._let_go) if group is not None else None

    @classmethod
    def of_this_group(cls) -> Peers:
        """Return those of the group that this process is in."""
        session = current_session()
        return cls(session.group if session is not None else None)

    def publish(self, worker: str) -> None:
        """Let other members find this process."""
        if (access := self._access) is not None:
            where = json.dumps(
                {"host": socket.gethostname(), "space": _space(), "pid": os.getpid()}
            )
            try:
                access.ask(lambda store: store.set(_KEY.format(worker), where), _STORE)
            except StoreError as error:
                _log.debug("dumps of other workers cannot name this process: %s", error)

    def lost(self, group: InspectedGroup) -> list[WorkerState]:
        """Return the members of this host whose processes have ended or cannot answer."""
        present = {state.worker for state in group.states}
        absent = [name for name in group.members if name not in present][:_MOST]
        access = self._access
        if not absent or access is None:
            return []
        pids = {name: pid for name in absent if (pid := _pid(access, name))}
        fates = processes.fates(pids.values(), _END)
        return [
            WorkerState(name, pid, fates[pid], group_key=group.key)
            for name, pid in pids.items()
            if fates[pid]
        ]

    def _let_go(self, _group: object) -> None:
        self._access = None


def _pid(access: StoreAccess, worker: str) -> int:
    """Return the process of a member of this host; 0 if it is not known."""
    try:
        text = access.ask(lambda store: _read(store, _KEY.format(worker)), _STORE)
        where = json.loads(text[:_MOST_BYTES] or "{}")
        if (where["host"], where["space"]) == (socket.gethostname(), _space()):
            return int(where["pid"])
    except (StoreError, ValueError, TypeError, KeyError):
        return 0
    return 0


def _read(store: Any, key: str) -> bytes:
    return bytes(store.get(key)) if store.check([key]) else b""


def _space() -> str:
    """Return the number space of this process's pids: containers on one host have different ones."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
