"""Steps for the workers of these tests."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path
from typing import Any, List  # noqa: UP035  # TorchScript reads it

import guard_attacks
import torch
from torch._C import _distributed_rpc as native
from torch.distributed import autograd, rpc
from torch.distributed.rpc import rref_proxy

from support import steps
from support.workers import WorkerContext


def join(me: WorkerContext, url: str, backend: str) -> None:
    """Join a group."""
    guard_attacks.make_evil_extension()
    steps.join(me, url, backend=backend)


def _outcome(run: Any) -> str:
    try:
        return f"returned {run()!r}"
    except Exception as error:  # the text is what the tests look at
        return f"{type(error).__name__}: {error}"


def attack(me: WorkerContext, calls: dict[str, bytes]) -> dict[str, str]:
    """Send each pickle as a call to worker0; return what came back."""
    to = rpc.get_worker_info("worker0")
    return {
        name: _outcome(
            lambda data=data: native._invoke_rpc_python_udf(to, data, [], 30.0, False).wait()
        )
        for name, data in calls.items()
    }


def attack_at_once(me: WorkerContext, calls: dict[str, bytes]) -> dict[str, str]:
    """Send all pickles to worker0 as calls, then wait; return what came back."""
    to = rpc.get_worker_info("worker0")
    sent = {
        name: native._invoke_rpc_python_udf(to, data, [], 60.0, False)
        for name, data in calls.items()
    }
    return {name: _outcome(future.wait) for name, future in sent.items()}


def set_timeout(me: WorkerContext, seconds: float) -> None:
    """Set the timeout of RPCs."""
    rpc._set_rpc_timeout(seconds)


def call_listed(me: WorkerContext) -> str:
    """Call a listed function of worker0."""
    return _outcome(lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (1,), timeout=30))


def until_rrefs_are_waited_for(me: WorkerContext, count: int) -> None:
    """Return when so many threads wait for RRefs of others."""
    while sum(thread.name == "rpc-backends-guard-rref" for thread in threading.enumerate()) < count:
        time.sleep(0.01)


def use_before_it_is_made(me: WorkerContext, folder: str) -> list[str]:
    """Call methods through RRefs of which worker0 makes the values only then."""
    file = Path(folder) / "go"
    rrefs = [rpc.remote("worker0", guard_attacks.Counter.slowly, (str(file),)) for _ in range(4)]
    sent = [rref.rpc_async().add(2) for rref in rrefs]
    file.touch()
    return [_outcome(future.wait) for future in sent]


def pass_rref(me: WorkerContext) -> list[str]:
    """Pass worker0 an RRef of worker2, and use it there and then here."""
    rref = rpc.remote("worker2", guard_attacks.Counter)
    return [
        _outcome(lambda: rpc.rpc_sync("worker0", guard_attacks.add_remotely, (rref, 1))),
        _outcome(lambda: rpc.rpc_sync("worker0", guard_attacks.add_remotely, (rref, 1))),
        _outcome(lambda: rref.rpc_sync().add(1)),
    ]


def attack_remotely(me: WorkerContext, calls: dict[str, bytes]) -> dict[str, str]:
    """Send each pickle as a call that creates an RRef on worker0; return what came back."""
    to = rpc.get_worker_info("worker0")
    return {
        name: _outcome(
            lambda data=data: native._invoke_remote_python_udf(to, data, [], 30.0, False).to_here()
        )
        for name, data in calls.items()
    }


def attack_wrapped(me: WorkerContext, calls: dict[str, bytes]) -> dict[str, str]:
    """Send each pickle as a call inside a context of distributed autograd."""
    to = rpc.get_worker_info("worker0")
    outcomes = {}
    with autograd.context():
        for name, data in calls.items():
            outcomes[name] = _outcome(
                lambda data=data: native._invoke_rpc_python_udf(
                    to, data, [torch.ones(1, requires_grad=True)], 30.0, False
                ).wait()
            )
    return outcomes


def answer_with(me: WorkerContext, pickles: dict[str, bytes]) -> None:
    """Answer the calls of the step `ask` with these pickles, in their order."""
    pickler: Any = rpc.internal._internal_rpc_pickler  # type: ignore[attr-defined]
    waiting = list(pickles.values())
    torchs = pickler.serialize
    pickler.serialize = lambda value: (waiting.pop(0), []) if waiting else torchs(value)


def ask(me: WorkerContext, names: list[str]) -> dict[str, str]:
    """Call worker1 once for each name; return what came back."""
    return {name: _outcome(lambda: rpc.rpc_sync("worker1", guard_attacks.listed)) for name in names}


def use(me: WorkerContext) -> dict[str, str]:
    """Do what the policy permits, with torch's API."""
    tensor = torch.arange(3.0)
    rref = rpc.remote("worker0", guard_attacks.Counter)
    uses = {
        "call": lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (1,)),
        "tensors": lambda: rpc.rpc_sync(
            "worker0", guard_attacks.listed, ([tensor, torch.float16],)
        ),
        "parameter": lambda: rpc.rpc_sync(
            "worker0", guard_attacks.listed, (torch.nn.Parameter(tensor),)
        ),
        "type": lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (guard_attacks.Config(3),)),
        "reference": lambda: (
            rpc.rpc_sync("worker0", guard_attacks.listed, (guard_attacks.listed,)).__name__
        ),
        "class method": lambda: rpc.rpc_sync("worker0", guard_attacks.Counter.starting_at, (3,)),
        "operator": lambda: rpc.rpc_sync("worker0", torch.add, (tensor, 1)),
        "remote operator": lambda: rpc.remote("worker0", torch.add, (tensor, 1)).to_here(),
        "fetch": lambda: rpc.remote("worker0", guard_attacks.listed, ({"a": (1, b"x")},)).to_here(),
        "method": lambda: rref.rpc_sync().add(2),
        "remote method": lambda: rref.remote().add(2).to_here(),
        "script": lambda: rpc.rpc_sync("worker0", listed_script, (tensor, [1])),
        "remote script": lambda: rpc.remote("worker0", listed_script, (tensor, [1])).to_here(),
        "exception": lambda: rpc.rpc_sync("worker0", guard_attacks.raise_unlisted),
    }
    outcomes = {name: _outcome(run) for name, run in uses.items()}
    with autograd.context():
        leaf = torch.ones(2, requires_grad=True)
        outcomes["autograd"] = _outcome(
            lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (leaf,)).sum().item()
        )
    return outcomes


def profile(me: WorkerContext) -> str:
    """Call a listed function under the profiler that torch sends to the callee."""
    with torch.autograd.profiler_legacy.profile():
        return _outcome(lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (1,)))


def call_self(me: WorkerContext) -> str:
    """Call a function of this worker that no policy lists."""
    own = rpc.get_worker_info().name
    return _outcome(lambda: rpc.rpc_sync(own, guard_attacks.raise_unlisted))


def memory(me: WorkerContext) -> int:
    """Return the most memory that this worker has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def misuse(me: WorkerContext, folder: str) -> dict[str, str]:
    """Do what the policy does not permit, with torch's API."""
    tensor = torch.arange(3.0)
    rref = rpc.remote("worker0", guard_attacks.Counter)
    uses = {
        "method": lambda: rref.rpc_sync().reset(f"{folder}/method"),
        "async method": lambda: rref.rpc_async().reset(f"{folder}/async").wait(),
        "attribute": lambda: rpc.rpc_sync(
            "worker0", rref_proxy._local_invoke, (rref, "__class__", (), {})
        ),
        "operator": lambda: rpc.rpc_sync("worker0", torch.mul, (tensor, 2)),
        "overload": lambda: rpc.rpc_sync("worker0", torch.sub, (tensor, 2)),
        "remote operator": lambda: rpc.remote("worker0", torch.mul, (tensor, 2)).to_here(),
        "script": lambda: rpc.rpc_sync("worker0", scripted, (tensor,)),
        "remote script": lambda: rpc.remote("worker0", scripted, (tensor,)).to_here(),
        "reference": lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (Path.mkdir,)),
        "type": lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (Path(folder),)),
        "gather": lambda: rpc.rpc_sync(
            "worker0",
            rpc.api._gather_to_leader,
            ("worker0worker10", "worker0", None, {"worker0", "worker1"}),
        ),
    }
    outcomes = {name: _outcome(run) for name, run in uses.items()}
    with torch.autograd.profiler_legacy.profile():  # the one that torch sends to the callee
        outcomes["profiling"] = _outcome(
            lambda: rpc.rpc_sync("worker0", guard_attacks.listed, (1,))
        )
    return outcomes


@torch.jit.script
def listed_script(tensor: torch.Tensor, numbers: List[int]) -> torch.Tensor:  # noqa: UP006
    """Add a number; a TorchScript function that the policy lists."""
    return tensor + numbers[0]


@torch.jit.script
def scripted(tensor: torch.Tensor) -> torch.Tensor:
    """Add one; a TorchScript function."""
    return tensor + 1
