"""Two workers and one call, over the backend named on the command line.

Run it with ``python examples/two_workers.py [BACKEND]``.
"""

import sys
import tempfile

import torch
import torch.multiprocessing as mp
from torch.distributed import rpc


def work(rank, backend, init_method):
    """Start one worker; worker 0 calls worker 1 for a sum."""
    options = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType[backend], init_method=init_method
    )
    rpc.init_rpc(
        f"worker{rank}", backend=backend, rank=rank, world_size=2, rpc_backend_options=options
    )
    if rank == 0:
        answer = rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))
        print(f"{rpc.BackendType[backend]}: 1 + 1 = {answer.tolist()}")
    rpc.shutdown()


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "TENSORPIPE"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(name, f"file://{folder}/rendezvous"), nprocs=2)
