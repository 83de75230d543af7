"""A trainer: runs the layers on the parameter server, sends gradients back, tests after every epoch.

Both trainers use the same weights at the same time. They wait for each other before each step and again
before the weights change. So no weight changes between a forward pass and its backward pass, and runs
with the same seed give the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.nn import functional

from demo import parameter_server as server
from demo.dataset import Share, load_share
from demo.fault_rules import Fired
from demo.plan import CALL, CLEANUP, FETCH, REMOTE, SERVER, TRAINERS, Plan
from demo.results import EpochDone, StepDone
from demo.retry import FaultLog


class Trainer:
    """One of the trainers, in a process that has joined the group.

    :param report: called with each progress report for the console.
    """

    def __init__(
        self, plan: Plan, name: str, report: Callable[[StepDone | EpochDone], None]
    ) -> None:
        self.plan = plan
        self.name = name
        self.report = report
        self.faults = FaultLog({} if plan.faults.by else plan.faults.messages_to_delay)
        self.fired = Fired(rpc.api._get_current_rpc_agent().get_metrics)
        self.share: Share = load_share(Path(plan.data), TRAINERS.index(name), parts=len(TRAINERS))
        # Both trainers make the same number of steps, although one may have one sample more.
        self.steps = len(self.share.train_x) // plan.batch
        self.shuffle = torch.Generator().manual_seed(plan.seed + TRAINERS.index(name))

    def run(self) -> None:
        """Train for all epochs; report each step and each epoch."""
        self.hidden = self.remote(server.layer, "hidden")
        self.output = self.remote(server.layer, "output")
        parameters = self.faults.call(CALL, lambda: rpc.rpc_sync(SERVER, server.parameter_rrefs))
        # An RRef in the arguments gets a new id with each send, so a retry would be a new message and
        # fail again, for ever. Inside this context messages do not fail.
        with dist_autograd.context():
            self.optimizer = DistributedOptimizer(
                server.LockedSGD,
                parameters,
                lr=self.plan.learning_rate,
                momentum=self.plan.momentum,
            )
        for epoch in range(1, self.plan.epochs + 1):
            started = time.perf_counter()
            loss = self.train(epoch)
            self.meet(f"epoch {epoch} trained")
            correct = self.test()
            failed, delayed = (self.fired if self.plan.faults.by else self.faults).take()
            tested, seconds = len(self.share.test_x), time.perf_counter() - started
            self.report(
                EpochDone(self.name, epoch, loss, correct, tested, failed, delayed, seconds)
            )

    def train(self, epoch: int) -> float:
        """Train on every batch once; return the mean loss."""
        order = torch.randperm(len(self.share.train_x), generator=self.shuffle)
        losses = []
        for step in range(self.steps):
            batch = order[step * self.plan.batch :][: self.plan.batch]
            point = f"epoch {epoch} step {step}"
            losses.append(self.learn(point, self.share.train_x[batch], self.share.train_y[batch]))
            self.report(StepDone(epoch, self.steps))
        return sum(losses) / len(losses)

    def learn(self, point: str, pictures: Tensor, labels: Tensor) -> float:
        """Do one step of distributed training; return its loss."""
        self.meet(f"{point} begins")
        with dist_autograd.context() as context:
            halves = [
                rpc.rpc_async(SERVER, server.forward, args=(self.hidden, half))
                for half in pictures.chunk(2)
            ]
            features = torch.relu(torch.cat([half.wait() for half in halves]))
            scores = rpc.rpc_sync(SERVER, server.forward, args=(self.output, features))
            loss = functional.cross_entropy(scores, labels)
            dist_autograd.backward(context, [loss])
            self.meet(f"{point} has its gradients")
            self.optimizer.step(context)
            leaving = time.perf_counter()
        self.faults.sent(CLEANUP, leaving)
        return loss.item()

    def test(self) -> int:
        """Fetch the weights; return how many of this trainer's test images are classified correctly."""
        held = self.remote(server.weights)
        timeout = self.plan.rpc_timeout
        weights: server.Weights = self.faults.call(FETCH, lambda: held.to_here(timeout))
        layers = server.build_layers(self.plan)
        for name, module in layers.items():
            module.load_state_dict(weights[name])
        with torch.no_grad():
            scores = layers["output"](torch.relu(layers["hidden"](self.share.test_x)))
        return int((scores.argmax(dim=1) == self.share.test_y).sum())

    def meet(self, point: str) -> None:
        """Wait until the other trainer reaches ``point``, too."""
        self.faults.call(CALL, partial(rpc.rpc_sync, SERVER, server.meet, args=(point, self.name)))

    def remote(self, function: Callable[..., object], *args: object) -> rpc.RRef[Any]:
        """Call ``function`` on the server; return an RRef to its result."""
        started = time.perf_counter()
        rref: rpc.RRef[Any] = rpc.remote(SERVER, function, args=args)
        self.faults.sent(REMOTE, started)
        return rref
