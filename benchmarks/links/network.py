"""Two network namespaces and the link between them, of 1 Gbit/s or with a long round trip."""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

_RATE_BITS_S = 1e9
#: Bytes that wait in the queue of the link: 10 ms.
_QUEUE_BYTES = 1_250_000
_HEADER = 10  # bytes of the header of `virtio` before a packet, which says how it is segmented


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def link(rtt_s: float, *, is_limited: bool = True, has_classes: bool = True) -> Iterator[list[str]]:
    """Make two namespaces with a link between them; gives their names. The first has 10.77.0.1.

    :param is_limited: whether the link has a rate of 1 Gbit/s; one with a round trip time has.
    :param has_classes: whether the queue before a link without a round trip time has classes of
        priority, as Linux's default ``pfifo_fast`` has, or is first in, first out.
    """
    names = [f"links-{os.getpid()}-{n}" for n in (1, 2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _ip("-n", name, "link", "set", "lo", "up")
        if rtt_s > 0:
            stack.enter_context(_router(names, rtt_s))
        else:
            _ip(
                "-n",
                names[0],
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                names[1],
            )
        for number, name in enumerate(names, 1):
            _ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            if rtt_s == 0 and is_limited:
                shaping = f"tbf rate 1gbit burst 131072 limit {_QUEUE_BYTES}"
                # The queue of a host's network device has classes, by the system's default.
                for where in (
                    f"root handle 1: {shaping}",
                    *(["parent 1: pfifo_fast"] * has_classes),
                ):
                    command = f"ip netns exec {name} tc qdisc add dev eth0 {where}"
                    subprocess.run(command.split(), check=True)
        yield names


def _open_tun(namespace: str) -> int:
    """Return a TUN device `eth0` in a namespace, which passes whole segments on."""
    tun_set_iff, tun_set_offload, tun, no_header, with_vnet = (
        0x400454CA,
        0x400454D0,
        1,
        0x1000,
        0x4000,
    )
    checksums, tso4 = 1, 2
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"ln{os.getpid() % 100000}{namespace[-1]}"
    fcntl.ioctl(fd, tun_set_iff, struct.pack("16sH22x", name.encode(), tun | no_header | with_vnet))
    fcntl.ioctl(fd, tun_set_offload, checksums | tso4)
    _ip("link", "set", name, "netns", namespace)
    _ip("-n", namespace, "link", "set", name, "name", "eth0")
    _ip("-n", namespace, "link", "set", "eth0", "txqueuelen", "1000")
    return fd


@contextlib.contextmanager
def _router(names: list[str], rtt_s: float) -> Iterator[None]:
    """Run a router between the namespaces, in a process of its own."""
    fds = [_open_tun(name) for name in names]
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, fds), str(rtt_s / 2)], pass_fds=fds
    )
    for fd in fds:
        os.close(fd)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def route(fds: list[int], delay_s: float) -> None:
    """Pass packets on after the time that a link takes; drop what exceeds its queue."""
    free_at = [0.0, 0.0]  # when the link of a direction has sent everything
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    longest_queue = max(_QUEUE_BYTES * 8 / _RATE_BITS_S, 2 * delay_s)
    while True:
        now = time.perf_counter()
        while due and due[0][0] <= now:
            _, _, target, packet = heapq.heappop(due)
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(fds[target], packet)
        wait = min(max(due[0][0] - time.perf_counter(), 0), 1) if due else 1
        ready, _, _ = select.select(fds, [], [], 0 if wait < 0.0005 else wait)
        now = time.perf_counter()
        for source in ready:
            side = fds.index(source)
            for _ in range(16):
                try:
                    packet = os.read(source, 1 << 17)
                except BlockingIOError:
                    break
                begin = max(free_at[side], now)
                if begin - now > longest_queue:
                    continue
                free_at[side] = begin + (len(packet) - _HEADER) * 8 / _RATE_BITS_S
                number += 1
                heapq.heappush(due, (free_at[side] + delay_s, number, 1 - side, packet))


if __name__ == "__main__":
    route([int(sys.argv[1]), int(sys.argv[2])], float(sys.argv[3]))
