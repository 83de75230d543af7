"""RRefs: remote references are created, passed on and used, and their values are freed at the end."""

from __future__ import annotations

import functools
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.checks import doing, expect, fact, remote, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import in_group, requirement
from rpc_backends_testing.time_limits import scaled

pytestmark = requirement("rrefs")

#: Seconds within which an owner learns that no worker refers to a value any more; scaled.
SOON = 6.0


# --- what workers keep and run -------------------------------------------------------------------


class Thing:
    """A value that reports when it is freed."""

    def __init__(self, number: int = 7) -> None:
        self.number = number

    def plus(self, number: int) -> int:
        return self.number + number


class Scale(torch.nn.Module):
    """A module whose result has the same bits on every worker."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([factor, 2 * factor, -factor]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


#: The objects that this worker keeps, by name.
KEPT: dict[str, Any] = {}
#: Weak references to the things that were made here.
MADE: list[weakref.ref[Thing]] = []


def make_thing(number: int = 7) -> Thing:
    thing = Thing(number)
    MADE.append(weakref.ref(thing))
    return thing


def add(left: int, right: int) -> int:
    return left + right


def name_here() -> str:
    return str(rpc.get_worker_info().name)


def fetch(rref: Any) -> Any:
    return rref.to_here()


def fetch_number(rref: Any) -> int:
    return int(rref.to_here().number)


def fetch_all(nested: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: [rref.to_here() for rref in rrefs] for key, rrefs in nested.items()}


def fetch_at_the_end(rref: Any, names: list[str]) -> tuple[str, Any]:
    """Pass ``rref`` from worker to worker; the last one fetches its value."""
    if names:
        end: tuple[str, Any] = rpc.rpc_sync(names[0], fetch_at_the_end, args=(rref, names[1:]))
        return end
    return name_here(), rref.to_here()


def look_at(rref: Any) -> tuple[bool, str, Any]:
    return rref.is_owner(), rref.owner_name(), rref.local_value()


def make_rref_here(value: Any) -> Any:
    return rpc.RRef(value)


def make_rref_on(name: str, left: int, right: int) -> Any:
    return rpc.remote(name, add, args=(left, right))


def add_fetched(rref: Any, number: int) -> int:
    return int(rref.to_here()) + number


def keep(key: str, value: Any) -> None:
    KEPT[key] = value


def use_kept(key: str) -> int:
    return fetch_number(KEPT[key])


def drop(key: str) -> None:
    del KEPT[key]
    gc.collect()


def counts() -> dict[str, int]:
    """Return this worker's counts of RRefs."""
    info = rpc._rref_context_get_debug_info()
    return {key: int(info[key]) for key in sorted(info)}


def counts_when(wanted: dict[str, int]) -> Any:
    """Wait at most :data:`SOON` for the counts ``wanted``, and return the last ones."""
    return _when(lambda: {key: counts().get(key, -1) for key in wanted}, wanted)


def alive_when(wanted: int) -> Any:
    """Wait until ``wanted`` of the things made here live, and return how many do."""
    return _when(lambda: sum(reference() is not None for reference in MADE), wanted)


def made_when(wanted: int) -> Any:
    """Wait until ``wanted`` things have been made here, and return how many have."""
    return _when(lambda: len(MADE), wanted)


def _when(look: Callable[[], Any], wanted: Any) -> Any:
    end = time.monotonic() + scaled(SOON)
    while (value := look()) != wanted and time.monotonic() < end:
        gc.collect()
        time.sleep(0.005)
    return value


NOTHING = {"num_owner_rrefs": 0, "num_forks": 0, "num_pending_users": 0}


def expect_nothing_on(name: str) -> None:
    """Expect that a worker has no RRefs left."""
    expect(sync(name, counts_when, args=(NOTHING,))).gives(NOTHING)


def import_remote_module() -> None:
    """Import `RemoteModule` here, because the callee needs the code that it generates."""
    import torch.distributed.nn  # noqa: F401


def compile_script() -> None:
    """Compile the TorchScript functions here, because a callee finds them by name."""
    script_double()
    script_fetch()


@functools.cache
def script_double() -> Any:
    return torch.jit.script(_double)


@functools.cache
def script_fetch() -> Any:
    return torch.jit.script(_fetch)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def _fetch(rref: rpc.RRef[torch.Tensor]) -> torch.Tensor:
    return rref.to_here()


# --- making them ---------------------------------------------------------------------------------


@in_group(2)
def test_remote_builtin(me: WorkerContext) -> None:
    """`remote` with a builtin of torch returns an RRef, and `to_here` fetches its value.

    The call is a SCRIPT_REMOTE_CALL; SCRIPT_RREF_FETCH_CALL fetches the value.
    """
    ones = torch.ones(2, 3)
    expect(remote("worker1", torch.add, args=(ones, 2))).gives(ones + 2)


@in_group(2)
def test_remote_python(me: WorkerContext) -> None:
    """`remote` with a Python function returns an RRef, and `to_here` fetches its value every time.

    The call is a PYTHON_REMOTE_CALL; PYTHON_RREF_FETCH_CALL fetches the value.
    """
    rref = rpc.remote("worker1", add, args=(3,), kwargs={"right": 4})
    expect(doing("remote('worker1', add).to_here()", rref.to_here)).gives(7)
    expect(doing("a second to_here() of one RRef", rref.to_here)).gives(7)


@requirement("rrefs", capability=Capability.TORCHSCRIPT)
@in_group(2)
def test_remote_torchscript(me: WorkerContext) -> None:
    """`remote` with a TorchScript function returns an RRef, and `to_here` fetches its value."""
    expect(sync("worker1", compile_script)).gives(None)
    x = torch.arange(4.0)
    expect(remote("worker1", script_double(), args=(x,))).gives(x + x)


@requirement("rrefs", capability=Capability.TORCHSCRIPT)
@in_group(3)
def test_torchscript_fetches(me: WorkerContext) -> None:
    """A TorchScript function with an RRef argument fetches the value from a third worker."""
    compile_script()
    expect(sync("worker1", compile_script)).gives(None)
    rref = rpc.remote("worker2", torch.add, args=(torch.ones(2), 1))
    expect(sync("worker1", script_fetch(), args=(rref,))).gives(torch.full((2,), 2.0))


@in_group(1)
def test_remote_to_self(me: WorkerContext) -> None:
    """`remote` to the worker itself returns an RRef that it owns.

    Torch computes the value in the caller's process and sends no message.
    """
    rref = rpc.remote("worker0", add, args=(1, 2))
    expect(doing("remote('worker0', add, args=(1, 2)).to_here()", rref.to_here)).gives(3)
    expect(fact("is_owner() of an RRef to the worker itself", rref.is_owner())).gives(True)
    expect(doing("local_value()", rref.local_value)).gives(3)


@in_group(2)
def test_local_rref(me: WorkerContext) -> None:
    """`RRef(value)` refers to a local value, which others can fetch."""
    thing = Thing(7)
    rref = rpc.RRef(thing)
    expect(fact("RRef(thing).local_value() is thing", rref.local_value() is thing)).gives(True)
    expect(fact("RRef(thing).to_here() is thing", rref.to_here() is thing)).gives(True)
    expect(sync("worker1", fetch_number, args=(rref,))).gives(7)


@in_group(2)
def test_owner(me: WorkerContext) -> None:
    """An RRef knows its owner: `owner()`, `owner_name()`, `is_owner()`."""
    rref = rpc.remote("worker1", add, args=(1, 2))
    rref.to_here()
    expect(fact("owner_name()", rref.owner_name())).gives("worker1")
    expect(fact("owner().name", rref.owner().name)).gives("worker1")
    expect(fact("owner().id", rref.owner().id)).gives(1)
    expect(fact("is_owner() on the user", rref.is_owner())).gives(False)
    local = rpc.RRef(1)
    expect(fact("RRef(1).owner_name()", local.owner_name())).gives("worker0")
    expect(fact("RRef(1).is_owner()", local.is_owner())).gives(True)


@in_group(2)
def test_confirmed_by_owner(me: WorkerContext) -> None:
    """The owner confirms an RRef that `remote` has created, and the user learns of it.

    The response to a REMOTE_CALL is the confirmation. It must reach the caller and complete the future.
    """
    rref = rpc.remote("worker1", add, args=(1, 2))
    rref.to_here()
    expect(
        doing("confirmed_by_owner() after to_here()", lambda: _when(rref.confirmed_by_owner, True))
    ).gives(True)
    local = rpc.RRef(1)
    expect(fact("RRef(1).confirmed_by_owner()", local.confirmed_by_owner())).gives(True)


@in_group(2)
def test_many(me: WorkerContext) -> None:
    """Many RRefs created at once refer to different values."""
    rrefs = [rpc.remote("worker1", add, args=(n, 100)) for n in range(15)]
    expect(doing("to_here() of 15 RRefs", lambda: [rref.to_here() for rref in rrefs])).gives(
        list(range(100, 115))
    )


# --- passing them on -----------------------------------------------------------------------------


@in_group(2)
def test_back_to_owner(me: WorkerContext) -> None:
    """When an RRef comes back to its owner, the owner gets the value itself.

    A worker that unpickles its own RRef finds the value by the RRef's id.
    """
    rref = rpc.remote("worker1", add, args=(20, 3))
    expect(sync("worker1", look_at, args=(rref,))).gives((True, "worker1", 23))


@in_group(3)
def test_to_third_worker(me: WorkerContext) -> None:
    """A worker fetches the value of an RRef argument from a third worker.

    The receiver reports its fork to the owner (RREF_FORK_REQUEST) before its function ends.
    """
    rref = rpc.remote("worker1", add, args=(1, 2))
    expect(sync("worker2", fetch, args=(rref,))).gives(3)


@in_group(4)
def test_chain_of_four(me: WorkerContext) -> None:
    """An RRef that passes through several workers works on the last one."""
    rref = rpc.remote("worker1", add, args=(1, 2))
    expect(sync("worker2", fetch_at_the_end, args=(rref, ["worker3"]))).gives(("worker3", 3))


@in_group(3)
def test_to_two_at_once(me: WorkerContext) -> None:
    """An RRef that is passed to two workers at once works on both."""
    rref = rpc.remote("worker1", add, args=(1, 2))
    futures = [rpc.rpc_async(name, fetch, args=(rref,)) for name in ("worker1", "worker2")]
    expect(
        doing(
            "rpc_async of fetch(rref) on two workers", lambda: [future.wait() for future in futures]
        )
    ).gives([3, 3])


@in_group(3)
def test_in_containers(me: WorkerContext) -> None:
    """Containers can hold RRefs of different owners."""
    theirs = rpc.remote("worker1", add, args=(1, 2))
    nested = {"theirs": [theirs, theirs], "mine": [rpc.RRef("here")]}
    expect(sync("worker2", fetch_all, args=(nested,))).gives({"theirs": [3, 3], "mine": ["here"]})


@in_group(3)
def test_argument_of_remote(me: WorkerContext) -> None:
    """An RRef can be an argument of `remote`."""
    rref = rpc.remote("worker1", add, args=(1, 2))
    expect(remote("worker2", add_fetched, args=(rref, 10))).gives(13)


@in_group(2)
def test_as_result(me: WorkerContext) -> None:
    """A function can return an RRef that its worker owns.

    A result forks the RRef to the caller, as an argument forks it to the callee.
    """
    rref = expect(sync("worker1", make_rref_here, args=(5,))).returns()
    expect(fact("owner_name() of the RRef returned", rref.owner_name())).gives("worker1")
    expect(doing("to_here() of the RRef returned", rref.to_here)).gives(5)


@in_group(3)
def test_as_result_of_third_worker(me: WorkerContext) -> None:
    """A function can return an RRef that another worker owns."""
    rref = expect(sync("worker1", make_rref_on, args=("worker2", 1, 2))).returns()
    expect(fact("owner_name() of the RRef returned", rref.owner_name())).gives("worker2")
    expect(doing("to_here() of the RRef returned", rref.to_here)).gives(3)


@in_group(3)
def test_rref_to_rref(me: WorkerContext) -> None:
    """The value of an RRef can be an RRef."""
    outer = rpc.remote("worker1", make_rref_on, args=("worker2", 1, 2))
    inner = expect(doing("to_here() of the outer RRef", outer.to_here)).returns()
    expect(doing("to_here() of the inner RRef", inner.to_here)).gives(3)


# --- using what they refer to --------------------------------------------------------------------


@in_group(2)
def test_proxy_rpc_sync(me: WorkerContext) -> None:
    """`rref.rpc_sync().method(...)` runs the method on the owner."""
    rref = rpc.remote("worker1", make_thing, args=(40,))
    expect(doing("rref.rpc_sync().plus(2)", lambda: rref.rpc_sync().plus(2))).gives(42)


@in_group(2)
def test_proxy_rpc_async(me: WorkerContext) -> None:
    """`rref.rpc_async().method(...)` returns a future of the method's result on the owner."""
    rref = rpc.remote("worker1", make_thing, args=(40,))
    expect(doing("rref.rpc_async().plus(2).wait()", lambda: rref.rpc_async().plus(2).wait())).gives(
        42
    )


@in_group(2)
def test_proxy_remote(me: WorkerContext) -> None:
    """`rref.remote().method(...)` returns an RRef to the method's result on the owner."""
    rref = rpc.remote("worker1", make_thing, args=(40,))
    result = expect(doing("rref.remote().plus(2)", lambda: rref.remote().plus(2))).returns()
    expect(fact("its owner_name()", result.owner_name())).gives("worker1")
    expect(doing("its to_here()", result.to_here)).gives(42)


@in_group(2)
def test_proxy_of_builtin_value(me: WorkerContext) -> None:
    """A method that is called through an RRef changes the tensor on its owner."""
    rref = rpc.remote("worker1", torch.full, args=((3,), 1.0))
    expect(doing("rref.rpc_sync().add_(1)", lambda: rref.rpc_sync().add_(1))).gives(
        torch.full((3,), 2.0)
    )
    expect(doing("rref.to_here() after add_", rref.to_here)).gives(torch.full((3,), 2.0))


@in_group(2)
def test_module(me: WorkerContext) -> None:
    """An `nn.Module` on another worker can be called through its RRef."""
    rref = rpc.remote("worker1", Scale, args=(3.0,))
    x = torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        wanted = Scale(3.0)(x)
        got = doing(
            "rref.rpc_sync().forward(x).detach()", lambda: rref.rpc_sync().forward(x).detach()
        )
        expect(got).gives(wanted)


@in_group(2)
def test_remote_module(me: WorkerContext) -> None:
    """`torch.distributed.nn.RemoteModule` creates and calls its module on another worker.

    `RemoteModule` asks the agent for its device map (`_get_device_map`), which may be empty.
    """
    from torch.distributed.nn import RemoteModule

    expect(sync("worker1", import_remote_module)).gives(None)
    module = RemoteModule("worker1/cpu", Scale, args=(3.0,))
    x = torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        wanted = Scale(3.0)(x)
        expect(doing("RemoteModule('worker1/cpu', Scale)(x)", lambda: module(x).detach())).gives(
            wanted
        )
    owner = module.get_module_rref().owner_name()
    expect(fact("get_module_rref().owner_name()", owner)).gives("worker1")


# --- letting go of them --------------------------------------------------------------------------


def hold(number: int = 7) -> Any:
    """Make a thing on worker 1 and check that worker 1 counts it."""
    rref = rpc.remote("worker1", make_thing, args=(number,))
    expect(sync("worker1", fetch_number, args=(rref,))).gives(number)
    held = {"num_owner_rrefs": 1, "num_forks": 1}
    expect(sync("worker1", counts_when, args=(held,))).gives(held)
    return rref


@in_group(2)
def test_deleted(me: WorkerContext) -> None:
    """The owner forgets an RRef when the last user drops it.

    A user that drops its RRef tells the owner (RREF_USER_DELETE), and the owner drops that fork.
    """
    rref = hold()
    del rref
    gc.collect()
    expect_nothing_on("worker1")
    expect_nothing_on("worker0")


@in_group(2)
def test_value_freed(me: WorkerContext) -> None:
    """The owner frees the value when the last user drops the RRef."""
    rref = hold()
    expect(sync("worker1", alive_when, args=(1,))).gives(1)
    del rref
    gc.collect()
    expect(sync("worker1", alive_when, args=(0,))).gives(0)


@in_group(2)
def test_dropped_at_once(me: WorkerContext) -> None:
    """An RRef that is dropped before its value exists is deleted too.

    The deletion waits for the owner's confirmation: it must not overtake the call that makes the value.
    """
    for number in range(5):
        rpc.remote("worker1", make_thing, args=(number,))
    gc.collect()
    expect(sync("worker1", made_when, args=(5,))).gives(5)
    expect(sync("worker1", alive_when, args=(0,))).gives(0)
    expect_nothing_on("worker1")


@in_group(3)
def test_passed_on_keeps_alive(me: WorkerContext) -> None:
    """A value lives as long as any worker has an RRef to it, even if the first user drops its RRef.

    The owner counts forks. It must confirm the third worker's fork before it drops the first worker's.
    """
    rref = hold()
    expect(sync("worker2", keep, args=("passed on", rref))).gives(None)
    del rref
    gc.collect()
    expect(sync("worker1", counts_when, args=({"num_forks": 1},))).gives({"num_forks": 1})
    expect(sync("worker2", use_kept, args=("passed on",))).gives(7)
    expect(sync("worker1", alive_when, args=(1,))).gives(1)
    expect(sync("worker2", drop, args=("passed on",))).gives(None)
    expect_nothing_on("worker1")
    expect(sync("worker1", alive_when, args=(0,))).gives(0)


@in_group(2)
def test_own_rref_comes_home(me: WorkerContext) -> None:
    """A worker's own RRef has no users left after another worker has dropped it."""
    rref = rpc.RRef(Thing(7))
    expect(sync("worker1", keep, args=("of worker0", rref))).gives(None)
    expect(doing("num_forks on worker0", lambda: counts_when({"num_forks": 1}))).gives(
        {"num_forks": 1}
    )
    expect(sync("worker1", drop, args=("of worker0",))).gives(None)
    expect(doing("num_forks on worker0", lambda: counts_when({"num_forks": 0}))).gives(
        {"num_forks": 0}
    )
    expect(fact("its value on its owner", fetch_number(rref))).gives(7)
    del rref
    gc.collect()
    expect(doing("counts on worker0", lambda: counts_when(NOTHING))).gives(NOTHING)


def traffic(me: WorkerContext) -> None:
    """Make RRefs on all other workers, pass them on, and drop them."""
    others = [f"worker{(me.index + step) % me.size}" for step in range(1, me.size)]
    rrefs = [rpc.remote(name, make_thing, args=(n,)) for name in others for n in range(2)]
    for place, rref in enumerate(rrefs):
        to = others[(place + 1) % len(others)]
        expect(sync(to, fetch_number, args=(rref,))).gives(place % 2)
    mine = rpc.RRef(Thing(me.index))
    for name in others:
        expect(sync(name, fetch_number, args=(mine,))).gives(me.index)


def settle(me: WorkerContext) -> None:
    """Check that this worker has no RRefs left."""
    gc.collect()
    expect(doing(f"counts of RRefs on {me.name}", lambda: counts_when(NOTHING))).gives(NOTHING)
    expect(doing(f"values alive on {me.name}", lambda: alive_when(0))).gives(0)


def test_no_leak_before_shutdown(rpc_groups: Groups) -> None:
    """No worker counts an RRef after all have made, passed on and dropped many."""
    with rpc_groups.running(3) as workers:
        workers.run(traffic)
        workers.run(settle)


def hold_on(me: WorkerContext) -> None:
    """Keep an RRef to a thing of the next worker."""
    rref = rpc.remote(f"worker{(me.index + 1) % me.size}", make_thing)
    expect(doing("to_here().number", lambda: rref.to_here().number)).gives(7)
    KEPT["till the end"] = rref


def test_shutdown_lets_go(rpc_groups: Groups) -> None:
    """A graceful shutdown of workers that hold RRefs ends, and frees the values.

    Torch deletes all users' RRefs before it calls the agents' `join`. These messages must still arrive.
    """
    with rpc_groups.workers(2) as workers:
        workers.run(worker_tasks.join, rpc_groups.subject, rpc_groups.place())
        workers.run(hold_on)
        alive = workers.run(lives, 1)
        expect(fact("values alive before shutdown", alive)).gives([1, 1])
        workers.run(worker_tasks.leave)
        alive = workers.run(lives, 0)
        expect(fact("values alive after shutdown", alive)).gives([0, 0])


def lives(me: WorkerContext, wanted: int) -> int:
    """Return how many of the things made here live; wait for ``wanted``."""
    return int(alive_when(wanted))
