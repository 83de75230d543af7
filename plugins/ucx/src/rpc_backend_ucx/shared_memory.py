"""What UCX's shared memory needs: room in ``/dev/shm``, and workers in the same namespaces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from rpc_backend_ucx import names
from rpc_backend_ucx.options import UCXRpcBackendOptions
from rpc_backend_ucx.processes import Process
from rpc_backends_agents.engine.errors import AddressError

#: About how many bytes of shared memory UCX takes for one worker under load: 4 MiB at the start, and
#: more for messages that wait. UCX ends the process if it gets none.
PER_WORKER = 20 << 20
_FOLDER = "/dev/shm"
#: Transports whose messages between workers of one host go through files in ``/dev/shm``.
_POSIX = ("posix", "mm", "sm", "shm", "all")
#: Transports with which two workers reach each other only through such files.
_NEED_POSIX = {*names.PRIVATE, *chain.from_iterable(names.DEVICE_TRANSPORTS.values())}
_TCP = (
    "If only the workers can reach the network, use TCP in its place "
    f"({UCXRpcBackendOptions.transports.variable}=self,tcp and "
    f"{UCXRpcBackendOptions.trusted_network.variable}=1)"
)


@dataclass(frozen=True)
class Room:
    """What a file system for shared memory holds.

    :ivar folder: where it is mounted.
    :ivar size: its size, in bytes.
    :ivar free: the bytes that are free.
    :ivar is_writable: whether this process can create files in it.
    """

    folder: str
    size: int
    free: int
    is_writable: bool = True

    def __str__(self) -> str:
        if not self.is_writable:
            return f"{self.folder} cannot be written to"
        return f"{self.folder} has {_mib(self.size)}, of which {_mib(self.free)} are free"

    @property
    def is_enough(self) -> bool:
        """Whether there is room for one worker."""
        return self.is_writable and self.free >= PER_WORKER


def room(environ: Mapping[str, str] = os.environ) -> Room:
    """Return the room in the folder that UCX uses; none if there is no such folder."""
    folder = environ.get("UCX_POSIX_DIR", _FOLDER)
    try:
        status = os.statvfs(folder)
    except OSError:
        return Room(folder, 0, 0)
    return Room(
        folder,
        status.f_blocks * status.f_frsize,
        status.f_bavail * status.f_frsize,
        os.access(folder, os.W_OK | os.X_OK),
    )


def is_used(transports: tuple[str, ...]) -> bool:
    """Return whether workers with these transports use files in shared memory."""
    return any(name in _POSIX for name in transports)


def is_needed(transports: tuple[str, ...]) -> bool:
    """Return whether workers with these transports have nothing else to reach each other."""
    return is_used(transports) and _NEED_POSIX.issuperset(transports)


def too_small(room: Room) -> str:
    """Return what to say of a shared memory that is too small for a worker."""
    return (
        f"{room}, and UCX takes up to {_mib(PER_WORKER)} of it for each worker. Enlarge it: docker run "
        "--shm-size=1g (or --ipc=host), an emptyDir with medium: Memory at /dev/shm in Kubernetes, "
        "or mount -o remount,rw,size=1g /dev/shm"
    )


def check_room(transports: tuple[str, ...], room: Room) -> str | None:
    """Check that there is shared memory for a worker.

    :returns: a warning; None if there is nothing to say.
    :raises AddressError: there is too little, and the worker cannot do without.
    """
    if not is_used(transports) or room.is_enough:
        return None
    if is_needed(transports):
        raise AddressError(f"{too_small(room)}. {_TCP}.")
    return f"{too_small(room)}. Until then, set transports without posix"


def crowd(workers: int, room: Room) -> str | None:
    """Return a warning if the workers of this host may fill the shared memory; None if they cannot."""
    if workers * PER_WORKER <= room.size:
        return None
    return (
        f"{room.folder} has {_mib(room.size)}, and {workers} workers of this host may take up to "
        f"{_mib(workers * PER_WORKER)} of it under load. UCX ends a worker that gets no more. Enlarge it "
        "(docker run --shm-size=1g)"
    )


def check_namespaces(mine: Process, theirs: Process, ours: str, peer: str) -> None:
    """Check that two workers of one host can use each other's shared memory.

    :param ours: this worker, for messages.
    :param peer: the other worker, for messages.
    :raises AddressError: they are in different namespaces.
    """
    different = [
        kind
        for kind, here, there in (
            ("PID", mine.namespace, theirs.namespace),
            ("IPC", mine.ipc_namespace, theirs.ipc_namespace),
            ("user", mine.user_namespace, theirs.user_namespace),
        )
        if here != there
    ]
    if different:
        raise AddressError(
            f"{ours} cannot reach {peer}, which runs on the same host in another "
            f"{' and '.join(different)} namespace, probably in another container: UCX's shared memory "
            "works only between workers with the same ones. Let the containers share them (docker run "
            "--pid=container:NAME --ipc=container:NAME; in Kubernetes, one pod with "
            f"shareProcessNamespace: true). {_TCP}."
        )


def check_network(mine: Process, theirs: Process, ours: str, peer: str) -> None:
    """Check that two workers of one host can wake each other up.

    UCX uses its shared memory between them, also if it has TCP, and wakes a worker that sleeps by a
    datagram to an abstract Unix socket, which belongs to a network namespace.

    :param ours: this worker, for messages.
    :param peer: the other worker, for messages.
    :raises AddressError: they are in different network namespaces.
    """
    if mine.network_namespace != theirs.network_namespace:
        raise AddressError(
            f"{ours} cannot reach {peer}, which runs on the same host in another network namespace, "
            "probably in another container: with UCX's shared memory they could not wake each other up. "
            f"Let them share one (docker run --network=container:NAME). {_TCP}."
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
