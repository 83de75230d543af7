"""Tasks that run in the workers: joining, leaving, and blocks of calls whose times they return."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rpc_backends_bench import accounting
from rpc_backends_bench.subjects import Subject
from rpc_backends_cli.processes import WorkerContext

#: Begin and end of something, by the clock that all processes share.
Span = tuple[float, float]

#: Modules that the template of the workers imports.
PRELOAD = (__name__, "rpc_backends_bench.scripted", "torch.distributed.rpc.functions")
#: Seconds after which a call is an error.
CALL_TIMEOUT = 60.0
#: Threads that call while a latency under load is measured.
LOADING_THREADS = 4

WARM_UP = 10
_FAR = 20
_REFILLS = 4
# Torch's handler has no defaults for these.
_OWN_DEFAULTS = {
    "FAULTY_TENSORPIPE": {
        "num_worker_threads": 16,
        "messages_to_fail": [],
        "messages_to_delay": {},
        "num_fail_sends": 0,
    }
}


def find_backends() -> None:
    """Look for what is installed, so that not every worker has to."""
    from rpc_backends_core.spi.inspection import default_registry

    default_registry().names()


# --- joining and leaving -------------------------------------------------------------------------


def prepare(me: WorkerContext, own_memory: bool = False) -> None:
    """Make this process what a program's is before it starts RPC.

    :param own_memory: copy the pages that a fork shares, so that no copying is measured.
    """
    if own_memory:
        accounting.own_memory()
    me.memory["before"] = accounting.inventory()


def join(
    me: WorkerContext, subject: Subject, url: str, world_size: int | None, at: float = 0.0
) -> Span:
    """Call ``init_rpc`` at the time ``at``.

    :param world_size: None for a dynamic group.
    """
    from torch.distributed import rpc

    if subject.own:
        _check_builtin(rpc)
        if subject.name == "FAULTY_TENSORPIPE":
            importlib.import_module("torch.distributed.rpc._testing")  # registers it
    types = rpc.backend_registry.BackendType if subject.own else rpc.BackendType
    member = types[subject.name]
    options = {**(_OWN_DEFAULTS.get(subject.name, {}) if subject.own else {}), **subject.options}
    settings = rpc.backend_registry.construct_rpc_backend_options(
        member, **{"init_method": url, "rpc_timeout": CALL_TIMEOUT, **options}
    )
    _sleep_until(at)
    begin = time.perf_counter()
    rpc.init_rpc(
        me.name,
        backend=member,
        rank=me.index,
        world_size=world_size,
        rpc_backend_options=settings,
    )
    return begin, time.perf_counter()


def connect_all(me: WorkerContext, ranks: list[int], at: float = 0.0) -> Span:
    """Call a no-op once on each of ``ranks``, all at once."""
    from torch.distributed import rpc

    _sleep_until(at)
    begin = time.perf_counter()
    for answer in [rpc.rpc_async(f"worker{rank}", noop) for rank in ranks if rank != me.index]:
        answer.wait()
    return begin, time.perf_counter()


def leave(me: WorkerContext, at: float = 0.0, graceful: bool = True) -> Span:
    """Call ``shutdown``."""
    from torch.distributed import rpc

    _sleep_until(at)
    begin = time.perf_counter()
    rpc.shutdown(graceful)
    return begin, time.perf_counter()


def resource_usage(me: WorkerContext) -> dict[str, int]:
    """Return what this process uses more than before RPC: bytes, threads, descriptors."""
    before = me.memory["before"]
    return {key: value - before[key] for key, value in accounting.inventory().items()}


# --- calls ---------------------------------------------------------------------------------------


def latency(
    me: WorkerContext, kind: str, calls: int, seconds: float, loaded: bool = False
) -> array[float]:
    """Return the times, in seconds, of calls to worker 1 that are made one after the other.

    :param seconds: after which it ends, with fewer ``calls``, but not before a quarter of them.
    :param loaded: while other threads of this process make no-ops on the same worker.
    """
    call = _call(me, kind)
    with _loading() if loaded else contextlib.nullcontext():
        return timed(call, calls, seconds, WARM_UP, least=calls // 4)


def throughput(
    me: WorkerContext, in_flight: int, seconds: float, at: float = 0.0, to: int = 1
) -> float:
    """Return how many no-ops a second end, with so many ``in_flight`` until the last ones.

    :param seconds: how long new ones begin; longer if these are less than a few for each in flight.
    """
    from torch.distributed.rpc import rpc_async

    name = f"worker{to}"
    _sleep_until(at)
    begin = time.perf_counter()
    end, far_end = begin + seconds, begin + _FAR * seconds
    waiting = deque(rpc_async(name, noop) for _ in range(in_flight))
    made, least = in_flight, _REFILLS * in_flight
    while (now := time.perf_counter()) < end or (made < least and now < far_end):
        waiting.popleft().wait()
        waiting.append(rpc_async(name, noop))
        made += 1
    for answer in waiting:
        answer.wait()
    return made / (time.perf_counter() - begin)


def size(me: WorkerContext, kind: str, length: int, calls: int, seconds: float) -> array[float]:
    """Return the times of sending ``length`` bytes to worker 1: ``oneway``, or ``echo`` and back."""
    import torch
    from torch.distributed.rpc import rpc_sync

    if me.memory.get("length") != length:
        me.memory.update(length=length, tensor=torch.ones(length, dtype=torch.uint8))
    tensor = me.memory["tensor"]
    function = echo if kind == "echo" else sink
    return timed(lambda: rpc_sync("worker1", function, args=(tensor,)), calls, seconds, 1, least=2)


def processor(me: WorkerContext, callee: int, calls: int, seconds: float) -> dict[str, float]:
    """Return the processor time of a call in the caller and in the callee, and of waiting.

    :param callee: the process of worker 1.
    """
    call = _call(me, "noop")

    def one_at_a_time() -> int:
        return len(timed(call, calls, seconds, 0, least=calls // 4))

    def at_once() -> int:
        begin = time.perf_counter()
        return max(1, round(throughput(me, 64, seconds) * (time.perf_counter() - begin)))

    result = {}
    for name, work in (("sync", one_at_a_time), ("async", at_once)):
        before = accounting.processor_times(os.getpid(), callee)
        made = work()
        after = accounting.processor_times(os.getpid(), callee)
        for side, used, there in zip(("caller", "callee"), after, before, strict=True):
            result[f"cpu.{name}.{side}"] = (used - there) / made
    begin, (before_idle,) = time.perf_counter(), accounting.processor_times(callee)
    time.sleep(seconds)
    (after_idle,) = accounting.processor_times(callee)
    result["cpu.idle"] = (after_idle - before_idle) / (time.perf_counter() - begin)
    return result


def noop() -> None:
    """Run on the callee: nothing."""


def echo(value: Any) -> Any:
    """Run on the callee: return the argument."""
    return value


def sink(value: Any) -> None:
    """Run on the callee: take the argument."""


# --- within --------------------------------------------------------------------------------------


def timed(
    call: Callable[[], Any], calls: int, seconds: float, unmeasured: int, *, least: int
) -> array[float]:
    """Return the times of at most ``calls`` calls, and of ``least``, unless these take far too long.

    :param unmeasured: calls before those.
    """
    end = time.perf_counter() + seconds
    for _ in range(unmeasured):
        call()
        if time.perf_counter() > end:
            break
    now = time.perf_counter
    end, far_end = now() + seconds, now() + _FAR * seconds
    times = array("d")
    for _ in range(calls):
        begin = now()
        call()
        after = now()
        times.append(after - begin)
        if after > far_end or (after > end and len(times) >= least):
            break
    return times


def _call(me: WorkerContext, kind: str) -> Callable[[], Any]:
    import torch
    from torch.distributed.rpc import rpc_sync

    from rpc_backends_bench.scripted import increment

    if "calls" not in me.memory:
        small, few = torch.ones(2, 2), torch.ones(16)
        me.memory["calls"] = {
            "noop": lambda: rpc_sync("worker1", noop),
            "builtin": lambda: rpc_sync("worker1", torch.add, args=(small, small)),
            "tensor": lambda: rpc_sync("worker1", echo, args=(few,)),
            "script": lambda: rpc_sync("worker1", increment, args=(few,)),
        }
    call: Callable[[], Any] = me.memory["calls"][kind]
    return call


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    from torch.distributed.rpc import rpc_sync

    over = threading.Event()
    under_way = threading.Barrier(LOADING_THREADS + 1)

    def load() -> None:
        rpc_sync("worker1", noop)
        under_way.wait(CALL_TIMEOUT)
        with contextlib.suppress(RuntimeError):  # the block meets the same error, and tells it
            while not over.is_set():
                rpc_sync("worker1", noop)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(LOADING_THREADS)]
    for thread in threads:
        thread.start()
    try:
        under_way.wait(CALL_TIMEOUT)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _check_builtin(rpc: Any) -> None:
    """Make sure that what is measured as torch's own is."""
    where = rpc.init_rpc.__module__
    if not where.startswith("torch."):
        raise RuntimeError(
            f"init_rpc is {where}'s and not torch's, though TORCH_DEVICE_BACKEND_AUTOLOAD=0: "
            "something imports and installs it when Python starts"
        )


def _sleep_until(at: float) -> None:
    pause = at - time.perf_counter()
    if pause > 0:
        time.sleep(pause)
