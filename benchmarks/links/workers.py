"""The workers of a side: worker 0 calls, and measures."""

from __future__ import annotations

import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import bare
from timing import HOSTS, LIMIT_S, MIB, beside, times


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
        bare.work(rank, address, what, out)
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


def _measure_mixed() -> dict[str, dict[str, float]]:
    import torch
    from torch.distributed import rpc

    large = torch.ones(64 * MIB // 4)
    return beside(
        {
            "same peer": lambda: rpc.rpc_sync("worker1", _noop),
            "other peer": lambda: rpc.rpc_sync("worker2", _noop),
        },
        lambda: rpc.rpc_sync("worker1", _echo, (large,)),
    )


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
        before = _processor_s() + rpc.rpc_sync("worker1", _processor_s)
        taken = times(partial(rpc.rpc_sync, "worker1", call, args), count, LIMIT_S)
        used = _processor_s() + rpc.rpc_sync("worker1", _processor_s) - before
        values[row] = {"median": statistics.median(taken), "processor": used / len(taken)}
    return values


def _measure_long() -> dict[str, dict[str, float]]:
    import torch
    from torch.distributed import rpc

    values = {}
    for size, count in ((MIB, 10), (64 * MIB, 4)):
        tensor = torch.ones(size // 4)
        rpc.rpc_sync("worker1", _echo, (tensor,))
        taken = times(partial(rpc.rpc_sync, "worker1", _echo, (tensor,)), count, LIMIT_S)
        values[f"echo of {size // MIB} MiB"] = {
            "median": statistics.median(taken),
            "least": min(taken),
        }
    return values


if __name__ == "__main__":
    work(int(sys.argv[1]), *sys.argv[2:7])
