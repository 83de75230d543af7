"""The parameter server's side: the layers it holds and the functions that trainers call on it."""

from __future__ import annotations

import threading
from typing import TypeAlias

import torch
import torch.distributed.optim  # here, so that no trainer waits for the server to import it
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from demo.plan import TRAINERS, Plan

Weights: TypeAlias = dict[str, dict[str, Tensor]]


def build_layers(plan: Plan) -> dict[str, nn.Module]:
    """Return the classifier's two layers, drawn from the plan's seed."""
    torch.manual_seed(plan.seed)
    return {"hidden": nn.Linear(64, plan.hidden), "output": nn.Linear(plan.hidden, 10)}


class MeetingPlace:
    """Lets nobody pass a point before everybody has arrived there.

    :param size: how many have to arrive.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[None]]] = {}

    def arrive(self, point: str) -> Future[None]:
        """Return a future that is done when ``size`` calls have named ``point``."""
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
    """SGD, unchanged, that two trainers may step at the same time.

    DistributedOptimizer runs an optimizer it has no TorchScript for under one lock, and this class
    is one that it does not know.
    """


# RPC runs module-level functions, so what these work on belongs to the module as well.
_layers: dict[str, nn.Module] = {}
_meetings = MeetingPlace(len(TRAINERS))


def open_server(plan: Plan) -> None:
    """Make the layers; called in the server's process before it joins the group."""
    _layers.update(build_layers(plan))


def layer(name: str) -> nn.Module:
    """Return a layer; called with ``rpc.remote``, so that the trainer gets an RRef to it."""
    return _layers[name]


def forward(held: rpc.RRef[nn.Module], batch: Tensor) -> Tensor:
    """Return what a layer makes of a batch."""
    output: Tensor = held.local_value()(batch)
    return output


def parameter_rrefs() -> list[rpc.RRef[nn.Parameter]]:
    """Return RRefs to all parameters, which is what a DistributedOptimizer wants."""
    return [rpc.RRef(parameter) for held in _layers.values() for parameter in held.parameters()]


def weights() -> Weights:
    """Return a copy of all weights, by layer, to test with."""
    return {
        name: {key: value.detach().clone() for key, value in held.state_dict().items()}
        for name, held in _layers.items()
    }


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def meet(point: str, trainer: str) -> Future[None]:
    """Answer when every trainer has called with the same ``point``; blocks no thread meanwhile.

    :param trainer: who calls; unused here, it tells one trainer's message from another's.
    """
    return _meetings.arrive(point)
