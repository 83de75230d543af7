"""Measure small calls beside large ones, and large calls over long links. Needs Linux and root.

Worker 0 calls worker 1 over a link of 1 Gbit/s between two network namespaces, or within the host:

* *small beside large*: a no-op alone, then while another thread echoes 64 MiB in a loop to the same
  worker; and a no-op to a third worker, on the host of worker 0, at the same times;
* *hosts*: a no-op, and echoes of 16 KiB, 1, 16 and 64 MiB, with the processor time of both workers,
  over a link whose rate has no limit: what the engines themselves cost between hosts;
* *long links*: an echo of 64 MiB (and of 1 MiB) over a link with a round trip of 1, 20 and 80 ms. A
  router in user space, over two TUN devices, delays the packets, because not every kernel has `netem`.

A side is a backend with options: `ZEROMQ:secret` (TLS), `ZEROMQ:plain`, `UCX`, `TENSORPIPE@torch`, and
`ZEROMQ:secret:bulk_connections=4`. The side `socket` (not *long links*) is the limit: 64 bytes
there and back on one bare TCP connection, beside 64 MiB on another; or, for *hosts*, the bytes there and
back on a bare connection, one after the other. The sides take turns.

    python benchmarks/links.py mixed                  # between hosts and within one, all sides
    python benchmarks/links.py hosts --rounds 7       # with the ratios to the first side
    python benchmarks/links.py long --rtt 20          # one round trip time
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import heapq
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

SIDES = ["TENSORPIPE@torch", "ZEROMQ:secret", "ZEROMQ:plain", "UCX"]
MIB = 1 << 20
#: Seconds that a worker may take.
_LIMIT_S = 170.0
_RATE_BITS_S = 1e9
#: The rows of *hosts*: the size of an echo in bytes, and how many are measured.
HOSTS = (
    ("no-op", 0, 2000),
    ("echo of 16 KiB", 16 << 10, 1000),
    ("echo of 1 MiB", MIB, 200),
    ("echo of 16 MiB", 16 * MIB, 20),
    ("echo of 64 MiB", 64 * MIB, 8),
)
#: Bytes that wait in the queue of the link: 10 ms.
_QUEUE_BYTES = 1_250_000
_HEADER = 10  # bytes of the header of `virtio` before a packet, which says how it is segmented


# --- the link ---------------------------------------------------------------------------------------


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
        [sys.executable, __file__, "router", *map(str, fds), str(rtt_s / 2)], pass_fds=fds
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


# --- the workers ------------------------------------------------------------------------------------


def _noop() -> None:
    pass


def _echo(tensor: Any) -> Any:
    return tensor


def _options(side: str, address: str, secret: str, *, within: bool) -> tuple[str, Any]:
    from torch.distributed import rpc

    name, *rest = side.partition("@")[0].split(":")
    if name == "TENSORPIPE":
        # Namespaces of a machine share memory, which TensorPipe would use.
        ways = {} if within else {"_transports": ["uv"], "_channels": ["mpt_uv", "basic"]}
        return name, rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{address}:29611", **ways)
    values: dict[str, Any] = {"init_method": f"tcp://{address}:29611"}
    for word in rest:
        key, _, value = word.partition("=")
        if key == "secret":
            values["secret"] = secret
            values["unix_sockets"] = False if not within else None
        elif key == "plain":
            values["unix_sockets"] = False if not within else None
            values |= {"encryption": False, "trusted_network": True}
        else:
            values[key] = int(value)
    if name == "UCX":
        from rpc_backend_ucx import UCXRpcBackendOptions

        if not within:  # namespaces of a machine share memory, which UCX would use
            values["transports"] = "tcp"
        return name, UCXRpcBackendOptions(trusted_network=True, **values)
    from rpc_backend_zeromq import ZeroMQRpcBackendOptions

    return name, ZeroMQRpcBackendOptions(**values)


def work(rank: int, side: str, address: str, secret: str, what: str, out: str) -> None:
    """Be a worker; worker 0 measures and writes the values."""
    if side == "socket":
        _be_bare(rank, address, what, out)
        return
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    name, options = _options(side, address, secret, within=address == "127.0.0.1")
    world = 3 if what == "mixed" else 2
    rpc.init_rpc(
        f"worker{rank}",
        backend=getattr(rpc.BackendType, name),
        rank=rank,
        world_size=world,
        rpc_backend_options=options,
    )
    if rank == 0:
        measures = {"mixed": _measure_mixed, "hosts": _measure_hosts, "long": _measure_long}
        values = measures[what]()
        Path(out).write_text(json.dumps(values))
    rpc.shutdown()


def _times(call: Callable[[], object], count: int, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < count and time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "median": statistics.median(ordered),
        "p99": ordered[int(len(ordered) * 0.99)],
        "count": len(ordered),
    }


def _measure_mixed() -> dict[str, dict[str, float]]:
    import torch
    from torch.distributed import rpc

    large = torch.ones(64 * MIB // 4)
    return _beside(
        {
            "same peer": lambda: rpc.rpc_sync("worker1", _noop),
            "other peer": lambda: rpc.rpc_sync("worker2", _noop),
        },
        lambda: rpc.rpc_sync("worker1", _echo, (large,)),
    )


def _beside(
    small: dict[str, Callable[[], object]], large: Callable[[], object]
) -> dict[str, dict[str, float]]:
    """Time each small call alone, and while another thread makes the large one in a loop."""
    values = {}
    large()
    for label, call in small.items():
        _times(call, 100, 5)
        values[f"{label}, alone"] = _summary(_times(call, 1000, 4))
    ends, echoes = threading.Event(), [0]

    def echo() -> None:
        while not ends.is_set():
            large()
            echoes[0] += 1

    thread = threading.Thread(target=echo)
    begin = time.perf_counter()
    thread.start()
    for label, call in small.items():
        values[f"{label}, beside 64 MiB"] = _summary(_times(call, 20_000, 8))
    seconds = time.perf_counter() - begin
    ends.set()
    thread.join()
    values["echoes of 64 MiB"] = {"per second": echoes[0] / seconds}
    return values


def _be_bare(rank: int, address: str, what: str, out: str) -> None:
    """Measure or serve the side `socket`: worker 1 sends what it gets back, on each connection."""
    port, no_delay = 29612, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = [size or 64 for _, size, _ in HOSTS] if what == "hosts" else [64, 64 * MIB]
    if rank == 0:
        with socket.create_server((address, port)) as listener:
            channels = [listener.accept()[0] for _ in sizes]
        for channel in channels:
            channel.setsockopt(*no_delay)
        messages = [bytearray(size) for size in sizes]
        values = {}
        if what == "hosts":
            for (row, _, count), channel, message in zip(HOSTS, channels, messages, strict=True):
                times = _times(partial(_echo_bare, channel, message), count + 3, _LIMIT_S)[3:]
                values[row] = {"median": statistics.median(times)}
        else:
            values = _beside(
                {"same peer": partial(_echo_bare, channels[0], messages[0])},
                partial(_echo_bare, channels[1], messages[1]),
            )
        for channel in channels:
            channel.close()
        Path(out).write_text(json.dumps(values))
    elif rank == 1:
        threads = []
        for size in sizes:
            channel = _connect((address, port))
            channel.setsockopt(*no_delay)
            threads.append(threading.Thread(target=_serve_bare, args=(channel, bytearray(size))))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _connect(to: tuple[str, int]) -> socket.socket:
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(to)
        time.sleep(0.05)


def _echo_bare(channel: socket.socket, message: bytearray) -> None:
    channel.sendall(message)
    if not _fill(channel, message):
        raise ConnectionError("the other side has closed the connection")


def _serve_bare(channel: socket.socket, message: bytearray) -> None:
    while _fill(channel, message):
        channel.sendall(message)


def _fill(channel: socket.socket, message: bytearray) -> bool:
    """Receive a whole message; return whether the other side has sent one."""
    rest = memoryview(message)
    while rest:
        size = channel.recv_into(rest)
        if size == 0:
            return False
        rest = rest[size:]
    return True


def _processor_s() -> float:
    return sum(os.times()[:2])


def _measure_hosts() -> dict[str, dict[str, float]]:
    import torch
    from torch.distributed import rpc

    values = {}
    for row, size, count in HOSTS:
        call, args = (_echo, (torch.ones(size // 4),)) if size else (_noop, ())
        for _ in range(3):
            rpc.rpc_sync("worker1", call, args)
        times = []
        before = _processor_s() + rpc.rpc_sync("worker1", _processor_s)
        for _ in range(count):
            begin = time.perf_counter()
            rpc.rpc_sync("worker1", call, args)
            times.append(time.perf_counter() - begin)
        used = _processor_s() + rpc.rpc_sync("worker1", _processor_s) - before
        values[row] = {"median": statistics.median(times), "processor": used / count}
    return values


def _measure_long() -> dict[str, dict[str, float]]:
    import torch
    from torch.distributed import rpc

    values = {}
    for size, count in ((MIB, 10), (64 * MIB, 4)):
        tensor = torch.ones(size // 4)
        rpc.rpc_sync("worker1", _echo, (tensor,))
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            rpc.rpc_sync("worker1", _echo, (tensor,))
            times.append(time.perf_counter() - begin)
        values[f"echo of {size // MIB} MiB"] = {
            "median": statistics.median(times),
            "least": min(times),
        }
    return values


# --- the runs ---------------------------------------------------------------------------------------


def measure(
    side: str, what: str, names: list[str] | None, secret: str
) -> dict[str, dict[str, float]]:
    """Start the workers of a side; return the values of worker 0."""
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parent))
    if side.endswith("@torch"):
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    address = "10.77.0.1" if names else "127.0.0.1"
    with tempfile.NamedTemporaryFile("r") as out, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(3 if what == "mixed" else 2):
            command = [
                sys.executable,
                __file__,
                "worker",
                str(rank),
                side,
                address,
                secret,
                what,
                out.name,
            ]
            worker_environ = environ
            if names:
                # Worker 2 is on the host of worker 0.
                number = 2 if rank == 1 else 1
                command = ["ip", "netns", "exec", names[number - 1], *command]
                worker_environ = dict(environ, TP_SOCKET_IFNAME="eth0", GLOO_SOCKET_IFNAME="eth0")
            process = subprocess.Popen(command, env=worker_environ)
            stack.callback(process.kill)
            processes.append(process)
        end = time.monotonic() + _LIMIT_S
        for process in processes:
            if process.wait(max(end - time.monotonic(), 1)) != 0:
                raise SystemExit(f"{side}: a worker ended with {process.returncode}")
        return dict(json.loads(out.read()))


def _print(where: str, side: str, values: dict[str, dict[str, float]]) -> None:
    for row, numbers in values.items():
        text = "  ".join(
            f"{key} {value:.4g}"
            if key in ("count", "per second")
            else f"{key} {value * 1e3:.3f} ms"
            for key, value in numbers.items()
        )
        print(f"{where:14} {side:34} {row:24} {text}", flush=True)
    for peer in ("same peer", "other peer"):
        if f"{peer}, alone" in values:
            alone, beside = values[f"{peer}, alone"], values[f"{peer}, beside 64 MiB"]
            ratios = [beside[key] / alone[key] for key in ("median", "p99")]
            shown = f"median {ratios[0]:.2f}, p99 {ratios[1]:.2f}"
            print(f"{where:14} {side:34} {peer}: beside / alone: {shown}", flush=True)


def _print_ratios(everything: dict[str, list[dict[str, dict[str, float]]]]) -> None:
    """Print the medians over the rounds, divided by those of the first side."""
    medians: dict[str, dict[tuple[str, str], float]] = {}
    for side, rounds in everything.items():
        keys = [(row, key) for row, numbers in rounds[0].items() for key in numbers]
        medians[side] = {
            (row, key): statistics.median(values[row][key] for values in rounds)
            for row, key in keys
        }
    reference = next(iter(medians.values()))
    for side, values in medians.items():
        for place, value in values.items():
            shown = f"{value * 1e3:10.3f} ms   ratio {value / reference[place]:.2f}"
            print(f"{side:44} {' '.join(place):28} {shown}")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("what", choices=["mixed", "hosts", "long"])
    options.add_argument("--side", action="append", help=f"a side; may repeat ({', '.join(SIDES)})")
    options.add_argument(
        "--rtt", action="append", type=float, help="ms; may repeat (long: 1, 20, 80; others: 0)"
    )
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument(
        "--only", choices=["between", "within"], help="mixed: only between hosts, or within one"
    )
    options.add_argument(
        "--fifo",
        action="store_true",
        help="mixed: the queue before the link is first in, first out, as that of a router may be;"
        " otherwise it is Linux's default, which has classes of priority",
    )
    options.add_argument("--json", type=Path, help="write all values to this file")
    arguments = options.parse_args()
    secret = subprocess.run(
        [Path(sys.executable).parent / "rpc-backends", "secret"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    everything = defaultdict(list)
    places: list[float | None] = list(
        arguments.rtt or ([1.0, 20.0, 80.0] if arguments.what == "long" else [0.0])
    )
    if arguments.what == "mixed" and arguments.only != "between":
        places.append(None)
    if arguments.only == "within":
        places = [None]
    for _ in range(arguments.rounds):
        for place in places:
            where = "within a host" if place is None else f"{place:g} ms"
            for side in arguments.side or SIDES:
                with contextlib.ExitStack() as stack:
                    names = None
                    if place is not None:
                        made = link(
                            place / 1e3,
                            is_limited=arguments.what != "hosts",
                            has_classes=not arguments.fifo,
                        )
                        names = stack.enter_context(made)
                    values = measure(side, arguments.what, names, secret)
                _print(where, side, values)
                everything[f"{where}: {side}"].append(values)
    if arguments.what == "hosts":
        _print_ratios(everything)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["router"]:
        route([int(sys.argv[2]), int(sys.argv[3])], float(sys.argv[4]))
    elif sys.argv[1:2] == ["worker"]:
        work(int(sys.argv[2]), *sys.argv[3:8])
    else:
        main()
