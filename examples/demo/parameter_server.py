"""The parameter server: the layers it holds and the functions that trainers call on it."""

from __future__ import annotations

import threading
from typing import TypeAlias

import torch
import torch.distributed.optim  # imported at the start, so that no trainer waits for the import
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from demo.plan import TRAINERS, Plan

Weights: TypeAlias = dict[str, dict[str, Tensor]]


def build_layers(plan: Plan) -> dict[str, nn.Module]:
    """Return the classifier's two layers, initialised from the plan's seed."""
    torch.manual_seed(plan.seed)
    return {"hidden": nn.Linear(64, plan.hidden), "output": nn.Linear(plan.hidden, 10)}


class Barrier:
    """A barrier for trainers: no call completes before all of them have arrived.

    :param size: the number of calls that have to arrive.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[None]]] = {}

    def arrive(self, point: str) -> Future[None]:
        """Return a future that completes when ``size`` calls have named ``point``."""
        future: Future[None] = Future()
        with self._lock:
            waiting = self._waiting.setdefault(point, [])
            waiting.append(future)
            if len(waiting) < self._size:
                return future
            del self._waiting[point]
        for arrived in waiting:
            arrived.set_result(None)
        return future


class LockedSGD(torch.optim.SGD):
    """Plain SGD, but safe when two trainers call ``step`` at the same time.

    DistributedOptimizer runs optimizers without a TorchScript version under a lock. It has a
    TorchScript version of SGD, but not of this class.
    """


# RPC calls module-level functions, so their state is module-level, too.
_layers: dict[str, nn.Module] = {}
_barrier = Barrier(len(TRAINERS))


def open_server(plan: Plan) -> None:
    """Create the layers; called in the server's process before it joins the group."""
    _layers.update(build_layers(plan))


def layer(name: str) -> nn.Module:
    """Return a layer; a trainer calls this with ``rpc.remote`` and gets an RRef to the layer."""
    return _layers[name]


def forward(held: rpc.RRef[nn.Module], batch: Tensor) -> Tensor:
    """Return a layer's output for a batch."""
    output: Tensor = held.local_value()(batch)
    return output


def parameter_rrefs() -> list[rpc.RRef[nn.Parameter]]:
    """Return RRefs to all parameters, as DistributedOptimizer needs them."""
    return [rpc.RRef(parameter) for held in _layers.values() for parameter in held.parameters()]


def weights() -> Weights:
    """Return a copy of all weights by layer, for testing."""
    return {
        name: {key: value.detach().clone() for key, value in held.state_dict().items()}
        for name, held in _layers.items()
    }


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def meet(point: str, trainer: str) -> Future[None]:
    """Return when every trainer has called with the same ``point``; blocks no thread while it waits.

    :param trainer: the caller; it only makes the trainers' messages different from each other.
    """
    return _barrier.arrive(point)
