"""Identifies the process of a worker, so that workers on the same host can notice its end."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rpc_backends_agents.engine import host


@dataclass(frozen=True)
class Process(host.Process):
    """A process on a host, with the namespaces that UCX works within.

    :ivar ipc_namespace: identifies the IPC namespace, within which UCX shares memory.
    :ivar user_namespace: identifies the user namespace; processes can open each other's files within one.
    :ivar network_namespace: identifies the network namespace, within which UCX wakes workers up.
    """

    ipc_namespace: str
    user_namespace: str
    network_namespace: str


def this_process() -> Process:
    """Return this process."""
    me = host.this_process()
    try:
        namespaces = [host.namespace(kind) for kind in ("ipc", "user", "net")]
    except OSError:
        return Process(0, 0, "", "", "", "")
    return Process(me.pid, me.start, me.namespace, *namespaces)


def can_watch() -> bool:
    """Return whether this process can watch for the end of another one (``pidfd_open``)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
