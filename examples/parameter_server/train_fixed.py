"""Two trainers and a parameter server learn to tell three spirals apart."""

import hashlib
import math
import tempfile
import threading

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import rpc
from torch.nn import functional

TRAINERS = 2
STEPS = 100
BATCH = 64


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )


def spirals(samples, seed):
    """Return points in the plane (samples x 2) and the spiral of each point (0, 1 or 2)."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(3, (samples,), generator=draw)
    radius = torch.rand(samples, generator=draw)
    angle = 4 * radius + label * 2 * math.pi / 3 + 0.1 * torch.randn(samples, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 2, label


class ParameterServer:
    """Adds up the trainers' gradients; takes a step when all trainers wait for it."""

    def __init__(self):
        self.model = build_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.lock = threading.Lock()
        self.steps = 0
        self.applied = 0
        self.latest = {}
        self.waiting = {}
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def update(self, trainer, number, gradients):
        with self.lock:
            if number <= self.latest.get(trainer, -1):  # already added
                return
            self.latest[trainer] = number
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad += gradient / TRAINERS  # the order of two addends does not matter
            self.applied += 1

    def step(self, trainer, number):
        with self.lock:
            if number < self.steps:  # a retry: the step was already taken
                return self.answer(torch.futures.Future())
            future = self.waiting.setdefault(trainer, torch.futures.Future())
            if len(self.waiting) == TRAINERS:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.steps += 1
                waiting, self.waiting = self.waiting, {}
                for asked in waiting.values():
                    self.answer(asked)
            return future

    def answer(self, future):
        future.set_result(self.parameters())
        return future


server = ParameterServer()  # only the one in the process "ps" is used


def parameters():
    return server.parameters()


def update(trainer, number, gradients):
    """Add a trainer's gradients to the next step, once."""
    server.update(trainer, number, gradients)


@rpc.functions.async_execution
def step(trainer, number):
    """Return the new parameters when all trainers have called."""
    return server.step(trainer, number)


def call(to, function, *args):
    """Call a function; retry if no reply came, because networks lose messages."""
    for _ in range(3):
        try:
            return rpc.rpc_sync(to, function, args=args, timeout=30)
        except RuntimeError as error:
            lost = error
    raise lost


def train(trainer, ps="ps"):
    model = build_model()
    points, labels = spirals(STEPS * BATCH, seed=1 + trainer)
    new = call(ps, parameters)
    for number in range(STEPS):
        for parameter, value in zip(model.parameters(), new, strict=True):
            parameter.data.copy_(value)
        batch = slice(number * BATCH, (number + 1) * BATCH)
        loss = functional.cross_entropy(model(points[batch]), labels[batch])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        call(ps, update, trainer, number, gradients)
        new = call(ps, step, trainer, number)


def result():
    """Return the number of applied updates, the accuracy and a digest of the parameters."""
    points, labels = spirals(1000, seed=0)
    with torch.no_grad():
        right = (server.model(points).argmax(dim=1) == labels).float().mean().item()
    digest = hashlib.sha256()
    for parameter in server.parameters():
        digest.update(bytes(parameter.flatten().view(torch.uint8).tolist()))
    return {"applied": server.applied, "accuracy": right, "parameters": digest.hexdigest()[:16]}


def work(rank, init_method):
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method)
    name = f"trainer{rank - 1}" if rank else "ps"
    rpc.init_rpc(name, rank=rank, world_size=1 + TRAINERS, rpc_backend_options=options)
    if rank:
        train(rank - 1)
    rpc.shutdown()
    if not rank:
        trained = result()
        print(f"{TRAINERS * STEPS} updates sent, {trained['applied']} applied")
        print(f"accuracy {trained['accuracy']:.3f}, parameters {trained['parameters']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(f"file://{folder}/rendezvous",), nprocs=1 + TRAINERS)
