"""A trainer and a parameter server that start again from their last checkpoint when one of them dies."""

import argparse
import hashlib
import multiprocessing
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

import torch
from torch.distributed import rpc

WORKERS = ("ps", "trainer")
STEPS = 12
EVERY = 4  # steps between two checkpoints
ATTEMPTS = 5


class Server:
    """The parameters, and the step that comes next."""

    def __init__(self):
        self.parameters = torch.zeros(4)
        self.step = 0

    def load(self, path):
        if path.exists():
            self.parameters, self.step = torch.load(path)

    def update(self, step, gradient):
        if step == self.step:  # a repeated call counts once
            self.parameters -= 0.1 * gradient
            self.step += 1

    def save(self, path, step):
        torch.save((self.parameters, step), f"{path}.new")
        Path(f"{path}.new").replace(path)


server = Server()  # only the one in the process "ps" is used


def next_step():
    return server.step


def parameters():
    return server.parameters.clone()


def update(step, gradient):
    server.update(step, gradient)


def save(path, step):
    server.save(path, step)


def call(function, *args):
    """Call a function of the parameter server; repeat a call that gets no answer."""
    for _ in range(5):
        try:
            return rpc.rpc_sync("ps", function, args=args)
        except RuntimeError as error:
            lost = error
    raise lost


def gradient_of(step, values):
    """Return the gradient of a step."""
    draw = torch.Generator().manual_seed(step)
    return 2 * (values - torch.randn(4, generator=draw))


def train(path, fixed):
    for step in range(call(next_step), STEPS):
        gradient = gradient_of(step, call(parameters))
        due = (step + 1) % EVERY == 0
        if due and not fixed:
            call(save, path, step + 1)  # the bug: the parameters miss this step
        call(update, step, gradient)
        if due and fixed:
            call(save, path, step + 1)
    digest = hashlib.sha256(call(parameters).numpy().tobytes()).hexdigest()
    print(f"parameters {digest[:16]}", flush=True)


def work(rank, meeting, path, fixed):
    """Run a worker."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=2)
    if rank == 0:
        server.load(path)
    rpc.init_rpc(WORKERS[rank], rank=rank, world_size=len(WORKERS), rpc_backend_options=options)
    if rank == 1:
        train(path, fixed)
    rpc.shutdown(timeout=60)


def attempt(folder, number, fixed):
    """Start both workers; return whether they ended well. If one dies, end the other."""
    context = multiprocessing.get_context("fork")
    settings = (f"{folder}/store{number}", folder / "checkpoint", fixed)
    workers = [context.Process(target=work, args=(rank, *settings)) for rank in range(len(WORKERS))]
    for worker in workers:
        worker.start()
    left = list(workers)
    while left and not any(worker.exitcode for worker in workers):
        wait([worker.sentinel for worker in left])
        left = [worker for worker in left if worker.is_alive()]
    for worker in left:
        worker.kill()
    for worker in workers:
        worker.join()
    return not any(worker.exitcode for worker in workers)


def main():
    """Run the job; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixed", action="store_true", help="run without the bug")
    fixed = parser.parse_args().fixed
    with tempfile.TemporaryDirectory() as folder:
        return int(not any(attempt(Path(folder), number, fixed) for number in range(ATTEMPTS)))


if __name__ == "__main__":
    sys.exit(main())
