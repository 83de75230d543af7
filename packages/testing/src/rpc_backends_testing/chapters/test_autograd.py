"""Distributed autograd: workers compute the same gradients as one process, bit by bit.

All numbers are small multiples of a quarter. Every sum is then exact, and the order of additions changes
no bit.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.checks import (
    Call,
    asynchronous,
    deviate,
    doing,
    expect,
    fact,
    remote,
    sync,
)
from rpc_backends_testing.comparison import describe
from rpc_backends_testing.groups import Groups, template
from rpc_backends_testing.marks import in_group, requirement
from rpc_backends_testing.suite import modules
from rpc_backends_testing.time_limits import scaled

pytestmark = requirement("autograd")

#: Seconds within which all workers forget a context that has ended; scaled.
SOON = 6.0

every_way = pytest.mark.parametrize(
    "way", (sync, asynchronous, remote), ids=lambda way: way.__name__
)


# --- what workers compute ------------------------------------------------------------------------


def start(*values: float) -> torch.Tensor:
    """Return a tensor that requires a gradient."""
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


def square_and_scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * x * factor


def through(x: torch.Tensor, names: list[str]) -> torch.Tensor:
    """Double ``x`` here, then continue with its square on each of the workers ``names`` in turn."""
    y = x + x
    if names:
        y = rpc.rpc_sync(names[0], through, args=(y * y, names[1:]))
    return y


def through_here(x: torch.Tensor, more: int) -> torch.Tensor:
    """Compute the result of `through` in one process."""
    y = x + x
    return through_here(y * y, more - 1) if more else y


def fetched_product(rref: Any, y: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = rref.to_here() * y
    return value


class Linear(torch.nn.Module):
    """A linear layer whose parameters are small whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, -1.0]]))
            self.linear.bias.copy_(torch.tensor([2.0, -3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y

    def parameter_rrefs(self) -> list[Any]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]

    def values(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters()]

    def gradients(self, context: int) -> list[torch.Tensor]:
        """Return this worker's gradients of the parameters in a context."""
        gradients = dist_autograd.get_gradients(context)
        return [gradients[parameter] for parameter in self.parameters()]

    def grads(self) -> list[torch.Tensor | None]:
        return [parameter.grad for parameter in self.parameters()]


def forward(rref: Any, x: torch.Tensor) -> torch.Tensor:
    """Call a module of this worker.

    It does not use ``rref.rpc_async()``, whose proxy may call in a thread without a context.
    """
    y: torch.Tensor = rref.local_value()(x)
    return y


INPUT = ((1.0, 2.0, -1.0), (0.5, -3.0, 2.0))


def linear_here(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the loss of a local `Linear` and its parameters' gradients; set the gradient of ``x``."""
    module = Linear()
    loss = module(x).sum()
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in module.parameters()]


def contexts() -> int:
    """Return the number of this worker's contexts."""
    return int(dist_autograd._get_debug_info()["num_autograd_contexts"])


def contexts_when(wanted: int) -> int:
    """Wait at most :data:`SOON` until this worker has ``wanted`` contexts, and return their number."""
    end = time.monotonic() + scaled(SOON)
    while (open_contexts := contexts()) != wanted and time.monotonic() < end:
        time.sleep(0.005)
    return open_contexts


def gradient(context: int, of: torch.Tensor) -> Call:
    """Build a call that looks up a gradient in a context."""
    text = f"get_gradients(context)[{describe(of)}]"
    return doing(text, lambda: dist_autograd.get_gradients(context)[of])


def backward(context: int, loss: torch.Tensor, **more: Any) -> None:
    """Run the backward pass and expect no error."""
    expect(
        doing("backward(context, [loss])", lambda: dist_autograd.backward(context, [loss], **more))
    ).gives(None)


# --- gradients -----------------------------------------------------------------------------------


@every_way
@in_group(2)
def test_two_workers(me: WorkerContext, way: Any) -> None:
    """The gradients that the callee computes for the arguments reach the caller.

    Torch wraps a call whose tensors require gradients in FORWARD_AUTOGRAD_REQ. The backward pass sends
    BACKWARD_AUTOGRAD_REQ to the callee, which runs no Python function.
    """
    x, y = start(1, 2, 3), start(4, -5, 0.5)
    (x * y).sum().backward()
    wanted = x.grad, y.grad
    x, y = start(1, 2, 3), start(4, -5, 0.5)
    with dist_autograd.context() as context:
        result = expect(way("worker1", product, args=(x, y))).returns()
        expect(fact("requires_grad of the result", result.requires_grad)).gives(True)
        backward(context, result.sum())
        expect(gradient(context, x)).gives(wanted[0])
        expect(gradient(context, y)).gives(wanted[1])


@every_way
@in_group(2)
def test_builtin(me: WorkerContext, way: Any) -> None:
    """Gradients pass through a builtin of torch on another worker."""
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        result = expect(way("worker1", torch.mul, args=(x, 3))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(torch.full((3,), 3.0))


@in_group(1)
def test_to_self(me: WorkerContext) -> None:
    """Gradients pass through a call of a worker to itself."""
    x, y = start(1, 2), start(3, 4)
    with dist_autograd.context() as context:
        result = expect(sync("worker0", product, args=(x, y))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(y.detach())
        expect(gradient(context, y)).gives(x.detach())


@in_group(3)
def test_three_workers(me: WorkerContext) -> None:
    """Gradients pass through a nested call to a third worker.

    Each worker continues the backward pass on the workers that it has called.
    """
    x = start(1, -2, 0.5)
    through_here(x, 2).sum().backward()
    wanted = x.grad
    x = start(1, -2, 0.5)
    with dist_autograd.context() as context:
        y = x + x
        result = expect(sync("worker1", through, args=(y * y, ["worker2"]))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(wanted)


@in_group(3)
def test_used_on_two_workers(me: WorkerContext) -> None:
    """A tensor used on two workers gets the sum of both gradients.

    The backward pass must not end before all workers have answered.
    """
    x = start(1, 2, 3)
    (square_and_scale(x, 2.0) + square_and_scale(x, 0.5)).sum().backward()
    wanted = x.grad
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        first = expect(sync("worker1", square_and_scale, args=(x, 2.0))).returns()
        second = expect(sync("worker2", square_and_scale, args=(x, 0.5))).returns()
        backward(context, (first + second).sum())
        expect(gradient(context, x)).gives(wanted)


@in_group(2)
def test_used_twice_in_a_call(me: WorkerContext) -> None:
    """A tensor used twice in a call, and once here, gets the sum of all gradients."""
    x = start(1, 2, 3)
    (x * x + x).sum().backward()
    wanted = x.grad
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        result = expect(sync("worker1", product, args=(x, x))).returns()
        backward(context, (result + x).sum())
        expect(gradient(context, x)).gives(wanted)


@in_group(2)
def test_only_what_requires_it(me: WorkerContext) -> None:
    """Of two tensors in a call, only the one that requires a gradient gets one."""
    x, y = start(1, 2), torch.tensor([3.0, 4.0])
    with dist_autograd.context() as context:
        result = expect(sync("worker1", product, args=(x, y))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(y)
        has_gradient = y in dist_autograd.get_gradients(context)
        expect(fact("a gradient of a tensor that requires none", has_gradient)).gives(False)


@in_group(2)
def test_several_roots(me: WorkerContext) -> None:
    """The backward pass can start from several losses."""
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        first = expect(sync("worker1", torch.mul, args=(x, 3))).returns().sum()
        second = expect(sync("worker1", torch.mul, args=(x, 4))).returns().sum()
        expect(
            doing("backward(context, [a, b])", lambda: _backward_all(context, [first, second]))
        ).gives(None)
        expect(gradient(context, x)).gives(torch.full((3,), 7.0))


def _backward_all(context: int, roots: list[torch.Tensor]) -> None:
    dist_autograd.backward(context, roots)


@in_group(2)
def test_retain_graph(me: WorkerContext) -> None:
    """With `retain_graph=True` a second backward pass adds the same gradients again."""
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        loss = expect(sync("worker1", square_and_scale, args=(x, 2.0))).returns().sum()
        backward(context, loss, retain_graph=True)
        expect(gradient(context, x)).gives(4 * x.detach())
        backward(context, loss)
        expect(gradient(context, x)).gives(8 * x.detach())


@in_group(2)
def test_through_rref(me: WorkerContext) -> None:
    """Gradients pass through an RRef's value, both on its owner and after `to_here`."""
    x, y = start(1, 2, 3), start(4, 5, 6)
    (x * 3 * y).sum().backward()
    wanted = x.grad, y.grad
    x, y = start(1, 2, 3), start(4, 5, 6)
    with dist_autograd.context() as context:
        rref = rpc.remote("worker1", torch.mul, args=(x, 3))
        result = expect(sync("worker1", fetched_product, args=(rref, y))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(wanted[0])
        expect(gradient(context, y)).gives(wanted[1])


@in_group(3)
def test_rref_of_third_worker(me: WorkerContext) -> None:
    """Gradients pass through an RRef that a third worker fetches from the owner."""
    x, y = start(1, 2, 3), start(4, 5, 6)
    with dist_autograd.context() as context:
        rref = rpc.remote("worker1", torch.mul, args=(x, 3))
        result = expect(sync("worker2", fetched_product, args=(rref, y))).returns()
        backward(context, result.sum())
        expect(gradient(context, x)).gives(3 * y.detach())
        expect(gradient(context, y)).gives(3 * x.detach())


@in_group(2)
def test_rref_backward(me: WorkerContext) -> None:
    """`rref.backward(context)` starts the backward pass on the worker that owns the loss.

    The caller sends RREF_BACKWARD_REQ to the owner.
    """
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        rref = rpc.remote("worker1", product_sum, args=(x, torch.tensor([3.0, 4.0, 5.0])))
        expect(doing("rref.backward(context)", lambda: rref.backward(context))).gives(None)
        expect(gradient(context, x)).gives(torch.tensor([3.0, 4.0, 5.0]))


def product_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum()


@in_group(2)
def test_remote_module(me: WorkerContext) -> None:
    """A remote module's parameters get gradients on its worker, and its input gets one on the caller."""
    x = torch.tensor(INPUT, requires_grad=True)
    loss_here, wanted = linear_here(x)
    wanted_input = x.grad
    x = torch.tensor(INPUT, requires_grad=True)
    rref = rpc.remote("worker1", Linear)
    with dist_autograd.context() as context:
        forward = doing("module.rpc_sync().forward(x)", lambda: rref.rpc_sync().forward(x))
        loss = expect(forward).returns().sum()
        expect(fact("the loss", loss.detach())).gives(loss_here)
        backward(context, loss)
        expect(gradient(context, x)).gives(wanted_input)
        theirs = doing(
            "the gradients of the module's parameters on worker1",
            lambda: rref.rpc_sync().gradients(context),
        )
        expect(theirs).gives(wanted)


@in_group(3)
def test_parameters_on_each_worker(me: WorkerContext) -> None:
    """Parameters on several workers get their gradients, each on its own worker."""
    x = torch.tensor(INPUT)
    scale = start(1, -2)
    modules = Linear(), Linear()
    ((modules[0](x) * scale).sum() + (modules[1](x) * scale).sum()).backward()
    wanted = [[parameter.grad for parameter in module.parameters()] for module in modules]
    wanted_scale = scale.grad

    scale = start(1, -2)
    rrefs = [rpc.remote(name, Linear) for name in ("worker1", "worker2")]
    with dist_autograd.context() as context:
        results = [rpc.rpc_async(rref.owner(), forward, args=(rref, x)) for rref in rrefs]
        loss = sum((result.wait() * scale).sum() for result in results)
        assert isinstance(loss, torch.Tensor)
        backward(context, loss)
        expect(gradient(context, scale)).gives(wanted_scale)
        for rref, theirs in zip(rrefs, wanted, strict=True):
            what = f"the gradients on {rref.owner_name()}"
            expect(doing(what, functools.partial(_gradients, rref, context))).gives(theirs)


def _gradients(rref: Any, context: int) -> Any:
    return rref.rpc_sync().gradients(context)


# --- contexts ------------------------------------------------------------------------------------


@in_group(2)
def test_not_in_grad(me: WorkerContext) -> None:
    """Gradients stay in the context, and no worker's `.grad` changes."""
    x = torch.tensor(INPUT, requires_grad=True)
    rref = rpc.remote("worker1", Linear)
    with dist_autograd.context() as context:
        backward(context, rref.rpc_sync().forward(x).sum())
        number = len(dist_autograd.get_gradients(context))
        expect(fact("gradients in the context", number)).gives(1)
        expect(fact("x.grad", x.grad)).gives(None)
        expect(doing("`.grad` of the parameters on worker1", rref.rpc_sync().grads)).gives(
            [None, None]
        )


@in_group(2)
def test_contexts_one_after_the_other(me: WorkerContext) -> None:
    """A context has no gradients of an earlier context."""
    x = start(1, 2, 3)
    for factor in (2.0, 3.0):
        with dist_autograd.context() as context:
            result = expect(sync("worker1", torch.mul, args=(x, factor))).returns()
            backward(context, result.sum())
            expect(gradient(context, x)).gives(torch.full((3,), factor))


@in_group(2)
def test_two_contexts_at_once(me: WorkerContext) -> None:
    """The contexts of two threads do not mix.

    Each message carries the id of its context. The callee must take it from there.
    """
    x = start(1, 2, 3)
    together = threading.Barrier(2, timeout=20)
    gradients: dict[float, Any] = {}

    def work(factor: float) -> None:
        try:
            with dist_autograd.context() as context:
                result = rpc.rpc_sync("worker1", square_and_scale, args=(x, factor))
                together.wait()
                dist_autograd.backward(context, [result.sum()])
                together.wait()
                gradients[factor] = dist_autograd.get_gradients(context)[x]
        except Exception as error:
            together.abort()
            gradients[factor] = error

    threads = [threading.Thread(target=work, args=(factor,)) for factor in (2.0, 0.5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for factor in (2.0, 0.5):
        call = f"the gradient of (x * x * {factor}).sum(), while another thread has another factor"
        if isinstance(gradients[factor], Exception):
            raise deviate(call, "a gradient", repr(gradients[factor]))
        expect(fact(call, gradients[factor])).gives(2 * factor * x.detach())


@in_group(3)
def test_contexts_are_gone(me: WorkerContext) -> None:
    """When a context ends, all workers that took part in it delete it.

    The worker that created it sends CLEANUP_AUTOGRAD_CONTEXT_REQ to the workers that it has called, and
    each of these sends it on to the workers that it has called.
    """
    x = start(1, 2, 3)
    with dist_autograd.context() as context:
        result = expect(sync("worker1", through, args=(x, ["worker2"]))).returns()
        backward(context, result.sum())
        expect(sync("worker1", contexts)).gives(1)
        expect(sync("worker2", contexts)).gives(1)
    for name in ("worker0", "worker1", "worker2"):
        expect(sync(name, contexts_when, args=(0,))).gives(0)


# --- DistributedOptimizer ------------------------------------------------------------------------


class PlainSGD(torch.optim.SGD):
    """SGD, which `DistributedOptimizer` does not replace with its TorchScript version."""


class PlainAdam(torch.optim.Adam):
    """Adam, which `DistributedOptimizer` does not replace with its TorchScript version."""


OPTIMIZERS = {
    "sgd": (PlainSGD, torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}),
    "adam": (PlainAdam, torch.optim.Adam, {"lr": 0.25}),
}
STEPS = 5

every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


def train_here(kind: str) -> list[torch.Tensor]:
    """Train two modules and a scale in this process, and return their parameters."""
    _, optimizer_class, options = OPTIMIZERS[kind]
    x, scale = torch.tensor(INPUT), start(1, -2)
    modules = Linear(), Linear()
    parameters = [scale, *modules[0].parameters(), *modules[1].parameters()]
    optimizer = optimizer_class(parameters, **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum((module(x) * scale).sum() for module in modules).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def train_there(optimizer_class: Any, options: dict[str, Any]) -> list[torch.Tensor]:
    """Train as `train_here` does, with the modules on workers 1 and 2; return the parameters."""
    from torch.distributed.optim import DistributedOptimizer

    x, scale = torch.tensor(INPUT), start(1, -2)
    rrefs = [rpc.remote(name, Linear) for name in ("worker1", "worker2")]
    parameters = [rpc.RRef(scale)]
    for rref in rrefs:
        parameters += rref.rpc_sync().parameter_rrefs()
    optimizer = DistributedOptimizer(optimizer_class, parameters, **options)
    for _ in range(STEPS):
        with dist_autograd.context() as context:
            results = [rpc.rpc_async(rref.owner(), forward, args=(rref, x)) for rref in rrefs]
            loss = sum((result.wait() * scale).sum() for result in results)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    values = [scale.detach().clone()]
    for rref in rrefs:
        values += rref.rpc_sync().values()
    return values


def _compare(wanted: list[torch.Tensor], got: list[torch.Tensor], rtol: float) -> None:
    for place, (left, right) in enumerate(zip(wanted, got, strict=True)):
        text = f"parameter {place} after {STEPS} steps"
        if rtol == 0:
            expect(fact(text, right)).gives(left)
        elif not torch.allclose(left, right, rtol=rtol, atol=rtol):
            raise deviate(text, f"{left.tolist()}, to {rtol:g}", str(right.tolist()))


def train(me: WorkerContext, kind: str, scripted: bool) -> None:
    """Train in one process and on three workers, and compare the parameters."""
    plain, usual, options = OPTIMIZERS[kind]
    optimizer_class = usual if scripted else plain
    wanted = train_here(kind)
    text = f"{STEPS} steps of DistributedOptimizer({optimizer_class.__name__})"
    me.doing(text)
    got = expect(doing(text, lambda: train_there(optimizer_class, options))).returns()
    _compare(wanted, got, 1e-6 if scripted else 0)


def in_trained_group(groups: Groups, kind: str, scripted: bool) -> None:
    """Train in a group of three."""
    # Importing the optimizers takes seconds, so only the workers of these tests import them.
    ready = template((*modules(), "torch.distributed.optim", "torch._dynamo"))
    with groups.workers(3, 60, template=ready) as workers:
        workers.run(worker_tasks.join, groups.subject, groups.place())
        workers[0].call(train, kind, scripted)
        workers.run(worker_tasks.leave)


@every_optimizer
def test_optimizer(rpc_groups: Groups, kind: str) -> None:
    """`DistributedOptimizer` on three workers trains as the optimizer does in one process.

    The parameters have the same bits. Each worker's optimizer is created and called by RPC, with the id
    of the context.
    """
    in_trained_group(rpc_groups, kind, scripted=False)


@requirement("autograd", capability=Capability.TORCHSCRIPT)
@every_optimizer
def test_script_optimizer(rpc_groups: Groups, kind: str) -> None:
    """`DistributedOptimizer` trains also with an optimizer that torch runs as TorchScript.

    The parameters agree to 1e-6, because torch's functional Adam computes in another order.
    """
    in_trained_group(rpc_groups, kind, scripted=True)
