"""Starts the workers of the programs with a planted bug, as processes that are forked."""

import os
import sys
import tempfile

import torch.multiprocessing as mp
from torch.distributed import rpc


def _run(names, rank, work, meeting, threads, graceful, rpc_timeout):
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{meeting}", rpc_timeout=rpc_timeout, num_worker_threads=threads
    )
    rpc.init_rpc(names[rank], rank=rank, world_size=len(names), rpc_backend_options=options)
    work(names[rank])
    rpc.shutdown(graceful=graceful, timeout=30)  # the timeout of calls may be too short for it


def run(names, work, *, threads=4, graceful=True, rpc_timeout=1.5):
    """Run ``work(name)`` on each worker; return the exit statuses."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        processes = [
            context.Process(
                target=_run,
                args=(names, rank, work, f"{folder}/store", threads, graceful, rpc_timeout),
            )
            for rank in range(len(names))
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return [process.exitcode for process in processes]


def main(names, work, **settings):
    """Run a program; exit with status 1 if a worker failed."""
    sys.exit(int(any(run(names, work, **settings))))


def say(text):
    """Write a line at once; workers share stdout."""
    os.write(1, f"{text}\n".encode())


def retry(to, function, *args, times=10):
    """Call a function until an answer comes."""
    for _ in range(times - 1):
        try:
            return rpc.rpc_sync(to, function, args=args)
        except RuntimeError:
            continue
    return rpc.rpc_sync(to, function, args=args)
