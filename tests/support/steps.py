"""Steps for `Workers.run` that many tests share, and the stores on which workers meet."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_processes import launcher_environ
from support.workers import WorkerContext

#: Upper limit in seconds for what happens at once, even on a busy machine; far below the time limits that
#: end a hang (60 s for a call, half an hour for a group).
AT_ONCE = 10.0

#: Constants that say how many seconds a worker waits for a store or for other workers.
_GRACE_PERIODS = (
    ("rpc_backends_core._bridge.rendezvous", "_MORE_THAN_TORCHS"),
    ("rpc_backends_core._bridge.session", "_HOST_GRACE_PERIOD"),
    ("rpc_backends_core._group.formation", "_READING_TIMEOUT"),
    ("rpc_backends_core._group.group", "STORE_TIMEOUT"),
    ("rpc_backends_agents.roster", "STORE_TIMEOUT"),
    ("rpc_backend_tensorpipe.membership", "STORE_TIMEOUT"),
)


@dataclass(frozen=True)
class Meeting:
    """A store on which workers meet.

    :ivar url: the init method.
    :ivar env: variables that the workers need for it.
    """

    kind: str
    url: str
    env: dict[str, str]


@contextlib.contextmanager
def meeting(kind: str, folder: Path) -> Iterator[Meeting]:
    """Yield a store on which workers can meet.

    :param kind: ``file``; ``tcp``, a TCP store that rank 0 hosts, as in torch; or ``agent``, a TCP store
        that this process hosts, as torchrun does.
    """
    if kind == "file":
        yield Meeting(kind, f"file://{folder}/store", {})
    elif kind == "tcp":
        from support.environments import free_port  # not in each worker

        # This socket is bound and does not listen: it reserves the port for sockets with SO_REUSEADDR.
        # The kernel may choose such a port for another of them, so it is none that the kernel chooses.
        with socket.socket() as placeholder:
            placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            placeholder.bind(("127.0.0.1", free_port()))
            yield Meeting(kind, f"tcp://127.0.0.1:{placeholder.getsockname()[1]}", {})
    else:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        url = f"tcp://127.0.0.1:{store.port}"
        yield Meeting(kind, url, launcher_environ(url))


# --- starting and stopping -----------------------------------------------------------------------


def join(
    me: WorkerContext,
    url: str,
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = 0,
    backend: str = "TENSORPIPE",
    only: dict[int, dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """Join a group, by default a static group of all workers; ``world_size=None`` makes it dynamic.

    TENSORPIPE uses only TCP unless ``_transports`` is given: setting up shared memory takes longer than
    most of the tests. ``_transports=None`` leaves the choice to TensorPipe.

    :param only: arguments for single workers, by index.
    """
    given = {"name": name, "rank": rank, "world_size": world_size, "backend": backend, **options}
    if only is not None:
        join(me, url, **{**given, **only.get(me.index, {})})
        return
    if backend == "TENSORPIPE":
        options = {"_transports": ["uv"], **options}
    member = rpc.BackendType[backend]
    rpc.init_rpc(
        me.name if name is None else name,
        backend=member,
        rank=me.index if rank is None else rank,
        world_size=me.size if world_size == 0 else world_size,
        rpc_backend_options=rpc.backend_registry.construct_rpc_backend_options(
            member, init_method=url, **options
        ),
    )


def join_and_tell(me: WorkerContext, url: str, **arguments: Any) -> None:
    """Join, and tell the test when this worker has arrived and waits for the others."""
    from rpc_backends_core._group import formation

    wait_for = formation.wait_for

    def tell_and_wait(*args: Any, **kwargs: Any) -> Any:
        me.tell("waiting")
        return wait_for(*args, **kwargs)

    formation.wait_for = tell_and_wait
    try:
        join(me, url, **arguments)
    finally:
        formation.wait_for = wait_for


def join_dynamic(me: WorkerContext, url: str, **arguments: Any) -> None:
    """Join a dynamic group."""
    join(me, url, world_size=None, **arguments)


def leave(me: WorkerContext, graceful: bool = True, timeout: float = 0) -> None:
    """Shut RPC down."""
    rpc.shutdown(graceful, timeout)


def put_on_path(me: WorkerContext, wheel: Path) -> None:
    """Add a wheel of `support.packages` to ``sys.path``; call this before anything scans for packages."""
    sys.path.append(str(wheel))


# --- working -------------------------------------------------------------------------------------


def who() -> str:
    """Return name and process id of the worker that runs this; called by RPC."""
    return f"{rpc.get_worker_info().name} {os.getpid()}"


def members(me: WorkerContext) -> dict[str, int]:
    """Return the ranks of the group's members by name."""
    return {info.name: info.id for info in rpc.api._get_current_rpc_agent().get_worker_infos()}


def call_all(me: WorkerContext) -> dict[str, str]:
    """Call all members and this worker itself; return the answers by name."""
    names = sorted(members(me))
    futures = [rpc.rpc_async(name, who) for name in names]
    return {name: future.wait().split()[0] for name, future in zip(names, futures, strict=True)}


def call(
    me: WorkerContext, to: Any, function: Callable[..., Any] = who, *args: Any, **more: Any
) -> Any:
    """Call one worker and return its answer."""
    return rpc.rpc_sync(to, function, args=args, **more)


def gather(me: WorkerContext, value: Any, timeout: float = 30) -> Any:
    """Send ``value`` to all members, which must do the same; return their values by name."""
    return rpc.api._all_gather(value, timeout=timeout)


def use_rref(me: WorkerContext, to: str) -> list[float]:
    """Create a value on another worker, change it there, and fetch it."""
    rref = rpc.remote(to, torch.full, args=((3,), 1.0))
    rref.rpc_sync().add_(1)
    value: list[float] = rref.to_here().tolist()
    return value


def differentiate(me: WorkerContext, to: str) -> list[float]:
    """Run a backward pass through another worker; return the gradient (threes)."""
    with dist_autograd.context() as context:
        x = torch.ones(2, requires_grad=True)
        loss = rpc.rpc_sync(to, torch.mul, args=(x, 3)).sum()
        dist_autograd.backward(context, [loss])
        gradient: list[float] = dist_autograd.get_gradients(context)[x].tolist()
        return gradient


def is_running(me: WorkerContext) -> bool:
    """Return whether RPC runs in this process."""
    return bool(rpc.api._is_current_rpc_agent_set())


def shorten_waits(me: WorkerContext, seconds: float = 1.0) -> None:
    """Shorten the waits for hanging stores and killed workers from several seconds to one."""
    from rpc_backends_core._group.waiting import StoreAccess

    StoreAccess.ask.__defaults__ = (seconds,)
    for module, name in _GRACE_PERIODS:
        if find_spec(module.partition(".")[0]):
            assert getattr(importlib.import_module(module), name) in (3.0, 5.0)
            setattr(sys.modules[module], name, seconds)


def limit_join(me: WorkerContext, seconds: float | None) -> None:
    """Set how long this worker waits until its group is complete; None for the default."""
    os.environ.pop("RPC_BACKENDS_JOIN_TIMEOUT", None)
    if seconds is not None:
        os.environ["RPC_BACKENDS_JOIN_TIMEOUT"] = f"{seconds:g}"


# --- what a process has open ---------------------------------------------------------------------


def warm_up(me: WorkerContext) -> None:
    """Open what a process opens once and keeps, such as the pipes of libuv in the first TCP store."""
    assert rpc.BackendType["TENSORPIPE"].value
    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
