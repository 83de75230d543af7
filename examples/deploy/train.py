"""Train a small model: worker 0 holds the weights, and all other workers compute gradients.

Every launcher starts the same program. It sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os

import torch
from torch.distributed import rpc

STEPS = 50
LEARNING_RATE = 0.1
SOLUTION = torch.tensor([[2.0], [-3.0]])


def gradient(weights: torch.Tensor, seed: int) -> tuple[torch.Tensor, float]:
    """Return gradient and loss of ``weights`` (2 x 1) on a batch of 64 samples; called by RPC."""
    batch = torch.randn(64, 2, generator=torch.Generator().manual_seed(seed))
    weights = weights.clone().requires_grad_()
    loss = (batch @ (weights - SOLUTION)).square().mean()
    (gradient_of_weights,) = torch.autograd.grad(loss, weights)
    return gradient_of_weights, loss.item()


def train(trainers: list[str]) -> None:
    weights, loss = torch.zeros(2, 1), 0.0
    for step in range(STEPS):
        calls = [
            rpc.rpc_async(name, gradient, args=(weights, len(trainers) * step + number))
            for number, name in enumerate(trainers)
        ]
        gradients, losses = zip(*(call.wait() for call in calls), strict=True)
        weights -= LEARNING_RATE * torch.stack(gradients).mean(dim=0)
        loss = sum(losses) / len(losses)
    print(f"{len(trainers)} trainers, {STEPS} steps, loss {loss:.6f}", flush=True)


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0:
        train([f"worker{number}" for number in range(1, size)])
    rpc.shutdown()


if __name__ == "__main__":
    main()
