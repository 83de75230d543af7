"""A lost wake-up: a consumer asks whether there is work, and then waits without asking again."""

import time

from group import main, retry
from torch import futures
from torch.distributed import rpc

items, waiters = [], []


def is_ready():
    return bool(items)


@rpc.functions.async_execution
def wait():
    future = futures.Future()  # the bug: the item may have come after `is_ready`
    waiters.append(future)
    return future


def put():
    items.append(1)
    while waiters:
        waiters.pop().set_result(None)


def status():
    return len(items)


def work(name):
    if name == "consumer":
        if not retry("server", is_ready):
            rpc.rpc_sync("server", wait, timeout=0)
    elif name == "producer":
        for _ in range(10):
            retry("server", status)
            time.sleep(0.1)
        retry("server", put)


if __name__ == "__main__":
    main(["server", "consumer", "producer"], work)
