"""Tasks that run in the workers: join and leave a group, and time blocks of calls."""

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
from rpc_backends_processes import WorkerContext, launcher_environ

#: Start and end of a task in seconds, by the clock that all processes share.
Span = tuple[float, float]

#: Modules that the workers' template imports.
PRELOAD = (__name__, "rpc_backends_bench.scripted", "torch.distributed.rpc.functions")
#: Timeout of a call.
CALL_TIMEOUT_S = 60.0
#: How many other threads make calls during a measurement of latency under load.
LOADING_THREADS = 4

#: Calls before those that are measured.
WARM_UP_CALLS = 10
#: A block ends after this many times its intended duration, even if it has made too few calls.
_OVERRUN_FACTOR = 20
#: A block of throughput makes at least this many calls for each one in flight.
_MIN_REFILLS = 4
# torch's construct handler has no defaults for these options.
_OWN_DEFAULTS = {
    "FAULTY_TENSORPIPE": {
        "num_worker_threads": 16,
        "messages_to_fail": [],
        "messages_to_delay": {},
        "num_fail_sends": 0,
    }
}


def find_backends() -> None:
    """Discover the installed backends in the template, so that not every worker has to."""
    from rpc_backends_core.spi.inspection import default_registry

    default_registry().names()


# --- join and leave ------------------------------------------------------------------------------


def prepare(me: WorkerContext, own_memory: bool = False) -> None:
    """Record what this process uses before it starts RPC.

    :param own_memory: first copy the memory pages that a fork shares, so that the measurement does not
        include that.
    """
    if own_memory:
        accounting.own_memory()
    me.memory["before"] = accounting.inventory()


def join(
    me: WorkerContext, subject: Subject, url: str, world_size: int | None, at: float = 0.0
) -> Span:
    """Call ``init_rpc``; return its start and end.

    :param world_size: None for a dynamic group.
    :param at: the time at which to call it.
    """
    from torch.distributed import rpc

    os.environ.update(launcher_environ(url))
    if subject.own:
        _check_builtin(rpc)
        if subject.name == "FAULTY_TENSORPIPE":
            importlib.import_module("torch.distributed.rpc._testing")  # registers it
    types = rpc.backend_registry.BackendType if subject.own else rpc.BackendType
    member = types[subject.name]
    options = {**(_OWN_DEFAULTS.get(subject.name, {}) if subject.own else {}), **subject.options}
    settings = rpc.backend_registry.construct_rpc_backend_options(
        member, **{"init_method": url, "rpc_timeout": CALL_TIMEOUT_S, **options}
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
    """Call a no-op on each of ``ranks``, all at once; return the start and end of that."""
    from torch.distributed import rpc

    _sleep_until(at)
    begin = time.perf_counter()
    for answer in [rpc.rpc_async(f"worker{rank}", noop) for rank in ranks if rank != me.index]:
        answer.wait()
    return begin, time.perf_counter()


def leave(me: WorkerContext, at: float = 0.0, graceful: bool = True) -> Span:
    """Call ``shutdown``; return its start and end."""
    from torch.distributed import rpc

    _sleep_until(at)
    begin = time.perf_counter()
    rpc.shutdown(graceful)
    return begin, time.perf_counter()


def resource_usage(me: WorkerContext) -> dict[str, int]:
    """Return how much more this process uses than before RPC: bytes, threads, file descriptors."""
    before = me.memory["before"]
    return {key: value - before[key] for key, value in accounting.inventory().items()}


# --- calls ---------------------------------------------------------------------------------------


def latency(
    me: WorkerContext, kind: str, calls: int, seconds: float, loaded: bool = False
) -> array[float]:
    """Return the times, in seconds, of calls to worker 1 in sequence.

    :param calls: the largest number of calls.
    :param seconds: the block ends after this time if it has made at least a quarter of ``calls``.
    :param loaded: whether other threads of this process call no-ops on the same worker meanwhile.
    """
    call = _call(me, kind)
    with _loading() if loaded else contextlib.nullcontext():
        return timed(call, calls, seconds, WARM_UP_CALLS, least=calls // 4)


def throughput(
    me: WorkerContext, in_flight: int, seconds: float, at: float = 0.0, to: int = 1
) -> float:
    """Return the number of no-ops per second with ``in_flight`` calls in flight.

    :param seconds: for how long new calls are made. If they are fewer than ``_MIN_REFILLS`` times
        ``in_flight`` by then, more are made.
    :param at: the time at which to begin.
    :param to: the rank of the worker that is called.
    """
    from torch.distributed.rpc import rpc_async

    name = f"worker{to}"
    _sleep_until(at)
    begin = time.perf_counter()
    end, far_end = begin + seconds, begin + _OVERRUN_FACTOR * seconds
    waiting = deque(rpc_async(name, noop) for _ in range(in_flight))
    made, least = in_flight, _MIN_REFILLS * in_flight
    while (now := time.perf_counter()) < end or (made < least and now < far_end):
        waiting.popleft().wait()
        waiting.append(rpc_async(name, noop))
        made += 1
    for answer in waiting:
        answer.wait()
    return made / (time.perf_counter() - begin)


def size(me: WorkerContext, kind: str, length: int, calls: int, seconds: float) -> array[float]:
    """Return the times, in seconds, of sending ``length`` bytes to worker 1.

    :param kind: ``oneway``, or ``echo`` for there and back.
    """
    from torch.distributed.rpc import rpc_sync

    function = echo if kind == "echo" else sink
    return timed_size(
        me, length, lambda tensor: rpc_sync("worker1", function, args=(tensor,)), calls, seconds
    )


def processor(me: WorkerContext, callee: int, calls: int, seconds: float) -> dict[str, float]:
    """Return the processor time of a call in caller and callee, and that of an idle callee.

    :param callee: the process id of worker 1.
    :returns: by row: seconds per call, and cores for ``cpu.idle``.
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
    """Run on the callee: do nothing."""


def echo(value: Any) -> Any:
    """Run on the callee: return the argument."""
    return value


def sink(value: Any) -> None:
    """Run on the callee: drop the argument."""


# --- helpers -------------------------------------------------------------------------------------


def timed(
    call: Callable[[], Any], calls: int, seconds: float, unmeasured: int, *, least: int
) -> array[float]:
    """Return the times, in seconds, of up to ``calls`` calls.

    :param seconds: stop after this time if at least ``least`` calls were made, and after
        ``_OVERRUN_FACTOR`` times as long in any case.
    :param unmeasured: how many calls to make first without measuring them, at most for
        ``_OVERRUN_FACTOR`` times ``seconds``.
    """
    now = time.perf_counter
    far_end = now() + _OVERRUN_FACTOR * seconds
    for _ in range(unmeasured):
        call()
        if now() > far_end:
            break
    end, far_end = now() + seconds, now() + _OVERRUN_FACTOR * seconds
    times = array("d")
    for _ in range(calls):
        begin = now()
        call()
        after = now()
        times.append(after - begin)
        if after > far_end or (after > end and len(times) >= least):
            break
    return times


def timed_size(
    me: WorkerContext, length: int, send: Callable[[Any], Any], calls: int, seconds: float
) -> array[float]:
    """Return the times, in seconds, of sending a tensor of ``length`` bytes, the same in each call.

    The first block of a size makes ``WARM_UP_CALLS`` calls first: engines take new memory for the first
    messages of a size, and use it again for the later ones.
    """
    import torch

    unmeasured = 1
    if me.memory.get("length") != length:
        me.memory.update(length=length, tensor=torch.ones(length, dtype=torch.uint8))
        unmeasured = WARM_UP_CALLS
    tensor = me.memory["tensor"]
    return timed(lambda: send(tensor), calls, seconds, unmeasured, least=2)


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
    failures: list[Exception] = []

    def load() -> None:
        try:
            rpc_sync("worker1", noop)
            under_way.wait(CALL_TIMEOUT_S)
        except Exception as error:
            failures.append(error)
            under_way.abort()
            return
        with contextlib.suppress(RuntimeError):  # the measured calls raise the same error
            while not over.is_set():
                rpc_sync("worker1", noop)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(LOADING_THREADS)]
    for thread in threads:
        thread.start()
    try:
        try:
            under_way.wait(CALL_TIMEOUT_S)
        except threading.BrokenBarrierError:
            if failures:
                raise failures[0] from None  # the later ones follow from it
            raise
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _check_builtin(rpc: Any) -> None:
    """Check that ``init_rpc`` is torch's own and not replaced.

    :raises RuntimeError: it is replaced.
    """
    where = rpc.init_rpc.__module__
    if not where.startswith("torch."):
        raise RuntimeError(
            f"init_rpc comes from {where} and not from torch, although TORCH_DEVICE_BACKEND_AUTOLOAD=0. "
            "Something installs it when Python starts: remove that .pth file or sitecustomize module"
        )


def _sleep_until(at: float) -> None:
    pause = at - time.perf_counter()
    if pause > 0:
        time.sleep(pause)
