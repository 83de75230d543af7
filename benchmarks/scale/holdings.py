"""Read the resources of a process from Linux: sockets by state, files, threads, memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_SOCKET = re.compile(r"socket:\[(\d+)\]")
#: Socket states in /proc/net: a TCP state is a number; a listening Unix socket has a flag instead.
_TCP_STATES = {"01": "connections", "0A": "listeners"}
_UNIX_CONNECTED, _UNIX_LISTENS = "03", 0x10000
#: A command that inspects the workers of this host may be connected to such a socket just now.
_INSPECTED = "@rpc-backends-inspect-"
#: How often the lists of sockets are read: a read misses some if other processes open and close sockets.
_READS = 3
_MEMORY = {
    "Rss": "resident",
    "Pss": "share",
    "Private_Dirty": "own",
    "Pss_Shmem": "shared_memory",
}

#: The resources of one process by name; memory in bytes, processor time in seconds.
Holdings = dict[str, float]


def holdings(pids: Iterable[int], *, besides: Iterable[int] = ()) -> list[Holdings]:
    """Return the resources of processes.

    :param besides: TCP ports of the store; connections to them are not counted.
    """
    states: dict[str, str] = {}
    for _ in range(_READS):
        states |= _tcp_states(set(besides)) | _unix_states()
    return [_holdings(pid, states) for pid in pids]


def available_memory() -> int:
    """Return the memory in bytes that is available to new processes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no MemAvailable in /proc/meminfo")


def _holdings(pid: int, states: dict[str, str]) -> Holdings:
    links = [_target(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    holdings: Holdings = {"connections": 0, "listeners": 0, "files": len(links)}
    for link in links:
        if (match := _SOCKET.fullmatch(link)) and (state := states.get(match[1])):
            holdings[state] += 1
    holdings["threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _MEMORY:
            holdings[_MEMORY[name]] = int(rest.split()[0]) * 1024
    # User and kernel time of all threads, in ticks of 10 ms.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    holdings["processor"] = (int(fields[11]) + int(fields[12])) / 100
    return holdings


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _tcp_states(besides: set[int]) -> dict[str, str]:
    states = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *rest = line.split()
            if state in _TCP_STATES and int(remote.rpartition(":")[2], 16) not in besides:
                states[rest[5]] = _TCP_STATES[state]
    return states


def _unix_states() -> dict[str, str]:
    states = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, state, inode, *path = line.split()
        if int(flags, 16) & _UNIX_LISTENS:
            states[inode] = "listeners"
        elif state == _UNIX_CONNECTED and not "".join(path).startswith(_INSPECTED):
            states[inode] = "connections"
    return states
