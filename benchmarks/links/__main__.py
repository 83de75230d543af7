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

    python benchmarks/links mixed                  # between hosts and within one, all sides
    python benchmarks/links hosts --rounds 7       # with the ratios to the first side
    python benchmarks/links long --rtt 20          # one round trip time
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from network import link
from timing import LIMIT_S

SIDES = ["TENSORPIPE@torch", "ZEROMQ:secret", "ZEROMQ:plain", "UCX"]


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
                str(Path(__file__).with_name("workers.py")),
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
        end = time.monotonic() + LIMIT_S
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
    main()
