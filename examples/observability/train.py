"""Two trainers that send gradients to a parameter server until they are interrupted; some calls fail."""

from __future__ import annotations

import argparse
import os
import random
import time

import torch
import torch.multiprocessing as mp
from opentelemetry import trace
from torch.distributed import rpc

NAMES = ["ps", "trainer0", "trainer1"]
WEIGHTS = torch.zeros(1000)


def update(gradient: torch.Tensor) -> torch.Tensor:
    if random.random() < 0.01:
        raise ValueError("the gradient is not finite")
    return WEIGHTS.add_(gradient, alpha=0.01)


def fetch() -> torch.Tensor:
    return WEIGHTS


def train(seconds: float) -> None:
    tracer = trace.get_tracer("train")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with tracer.start_as_current_span("step"):
            weights = rpc.remote("ps", fetch).to_here()
            try:
                rpc.rpc_sync("ps", update, (torch.randn(1000) - weights,))
            except ValueError as error:
                print(error)
        time.sleep(0.01)


def main(rank: int, seconds: float) -> None:
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=len(NAMES))
    if NAMES[rank] != "ps":
        train(seconds)
    rpc.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    mp.spawn(main, (parser.parse_args().seconds,), nprocs=len(NAMES))
