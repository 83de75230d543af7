"""A ``remote`` call that arrives after its timeout, which is an internal error of torch.

Run ``python program.py [--backend NAME] [--to worker0|worker1]``. Worker 0 of two workers creates an
object, on itself or on the other, and calls a method of it with ``remote(timeout=1)``. See README.md.
"""

import argparse
import os
import sys
import tempfile
import threading

import torch.multiprocessing as mp
from torch.distributed import rpc

TIMEOUT = 4.0  # seconds


class Thing:
    """An object that a remote call copies."""

    def copy(self):
        """Return a copy."""
        return Thing()


def owner_name(rref):
    """Return the owner of an RRef; called by RPC, to pass an RRef to another worker."""
    return rref.owner_name()


def attempt(what, function):
    """Call ``function`` on a thread, with a time limit; print the outcome, return whether it ended."""
    came = []

    def run():
        try:
            function()
        except RuntimeError as error:
            came.append(str(error).splitlines()[0])
        else:
            came.append("fine")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * TIMEOUT)
    print(f"{what}: {came[0] if came else 'has not returned'}", flush=True)
    return bool(came)


def use(to):
    """Create an object, call its method, fetch the result, pass it on; return whether all calls ended."""
    thing = rpc.remote(to, Thing)
    thing.to_here()
    copy = thing.remote(timeout=1).copy()
    back = attempt("to_here", lambda: copy.to_here(timeout=TIMEOUT))
    return back and attempt("pass on", lambda: rpc.rpc_sync("worker1", owner_name, args=(copy,)))


def work(rank, backend, to, meeting):
    """Run a worker."""
    kind = rpc.BackendType[backend]
    # torch's FAULTY_TENSORPIPE has faults by default.
    own = {"messages_to_fail": [], "messages_to_delay": {}} if backend.startswith("FAULTY") else {}
    options = rpc.backend_registry.construct_rpc_backend_options(
        kind, init_method=f"file://{meeting}", **own
    )
    rpc.init_rpc(
        f"worker{rank}", rank=rank, world_size=2, backend=kind, rpc_backend_options=options
    )
    if rank == 0 and not use(to):
        os._exit(1)  # a thread is stuck inside torch
    rpc.shutdown()


def main():
    """Run both workers; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="TENSORPIPE", help="default: TENSORPIPE")
    parser.add_argument(
        "--to",
        default="worker0",
        choices=["worker0", "worker1"],
        help="the worker that holds the object",
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = (chosen.backend, chosen.to, f"{folder}/rendezvous")
        try:
            mp.spawn(work, settings, nprocs=2)
        except mp.ProcessExitedException:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
