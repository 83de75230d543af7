"""Build the benchmark of the transport, run its cases in turns, and print medians.

    python plugins/zeromq/csrc/bench/run.py [--runs N] [--threads N] [what ...]

``what``: latency, rate, bulk, bulk2. On a machine that is not idle the figures drift: compare only
figures of one run of this script, and look at their spread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parent
HEADERS = HERE.parents[3] / "packages/agents/src/rpc_backends_agents/include"
UNITS = {"latency": "us/round trip", "rate": "messages/s", "bulk": "GB/s", "bulk2": "GB/s"}
WAYS = ("ours", "raw", "socket", "pyzmq")
PYZMQ = """
import os, sys, time, zmq
medium, security, what, size = sys.argv[1:]
rounds, size = (40, 64 << 20) if what.startswith("bulk") else (20000, int(size))
read, write = os.pipe()
public, secret = zmq.curve_keypair()
child = os.fork()
context = zmq.Context()
if child == 0:
    router = context.socket(zmq.ROUTER)
    if security == "curve":
        router.curve_server, router.curve_secretkey = True, secret
    router.bind("tcp://127.0.0.1:*" if medium == "tcp" else f"ipc:///tmp/bench-{os.getpid()}")
    os.write(write, router.last_endpoint)
    while True:
        route, frame = router.recv_multipart(copy=not what.startswith("bulk"))
        router.send_multipart([route, b"12345678" if what.startswith("bulk") else frame])
dealer = context.socket(zmq.DEALER)
if security == "curve":
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = public
dealer.connect(os.read(read, 200).rstrip(b"\\0").decode())
data = b"x" * size
def run(rounds):
    for _ in range(rounds):
        dealer.send(data, copy=len(data) < 65536)
        dealer.recv()
run(3 if what.startswith("bulk") else 500)
begin = time.perf_counter()
run(rounds)
took = time.perf_counter() - begin
print(size * rounds / took / 1e9 if what.startswith("bulk") else took / rounds * 1e6, flush=True)
os.kill(child, 9)
os._exit(0)
"""


def libzmq() -> str:
    """Return the file of the libzmq that pyzmq loads."""
    import zmq  # noqa: F401  # loads libzmq

    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libzmq" in line:
            return line.split(maxsplit=5)[5]
    raise SystemExit(
        "error: this pyzmq contains libzmq in its own extension. Install a wheel of pyzmq, which has "
        "libzmq as a library"
    )


def build(folder: Path) -> Path:
    """Compile the benchmark with the transport, without its Python bindings; return the program."""
    program = folder / "bench"
    sources = [str(path) for path in CSRC.glob("*.cpp") if path.name != "bindings.cpp"]
    flags = ["-std=c++20", "-O2", f"-I{CSRC}", f"-I{HEADERS}", "-ldl", "-pthread"]
    command = ["g++", *sources, str(HERE / "bench.cpp"), *flags, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def measure(
    program: Path, library: str, case: tuple[str, ...], threads: int
) -> tuple[float, float]:
    """Return the figure, and the processor time of both processes in seconds."""
    what, medium, security, way = case
    if way == "pyzmq":
        command = [sys.executable, "-c", PYZMQ, medium, security, what, "200"]
    else:
        command = [str(program), library, way, medium, security, what, str(threads)]
    before = os.times()
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    after = os.times()
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return float(done.stdout), used


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["latency", "rate", "bulk"], choices=[*UNITS])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--media", default="tcp,ipc")
    parser.add_argument("--securities", default="null,curve")
    chosen = parser.parse_args()
    assert find_spec("zmq"), "this script needs pyzmq: pip install pyzmq"
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        library = libzmq()
        for what in chosen.what:
            run_cases(program, library, what, chosen)


def run_cases(program: Path, library: str, what: str, chosen: argparse.Namespace) -> None:
    """Measure all cases in turns; print a line for each."""
    cases = [
        case
        for case in product(
            (what,),
            chosen.media.split(","),
            chosen.securities.split(","),
            chosen.ways.split(","),
        )
        if not (case[3] == "socket" and (case[2] == "curve" or what in ("rate", "bulk2")))
        and not (case[3] == "pyzmq" and what in ("rate", "bulk2"))
    ]
    figures: dict[tuple[str, ...], list[float]] = {case: [] for case in cases}
    for _ in range(chosen.runs):
        for case in cases:
            figures[case].append(measure(program, library, case, chosen.threads)[0])
    for case in cases:
        found = sorted(figures[case])
        print(
            f"{case[0]:8} {case[1]} {case[2]:5} {case[3]:6} "
            f"{statistics.median(found):12,.2f} {UNITS[what]}   ({found[0]:,.2f} to {found[-1]:,.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
