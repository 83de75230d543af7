"""A deadlock through a pool of one thread: a repeated request causes a call that comes back."""

from group import main, retry
from torch.distributed import rpc

seen = set()


def put(number):
    if number in seen:
        # The bug: this occupies the only thread, and the trainer's `confirm` needs it.
        rpc.rpc_sync("trainer", confirm, args=(number,), timeout=0)
    seen.add(number)


def confirm(number):
    return rpc.rpc_sync("server", is_known, args=(number,), timeout=0)


def is_known(number):
    return number in seen


def work(name):
    if name == "trainer":
        for number in range(10):
            retry("server", put, number)


if __name__ == "__main__":
    main(["server", "trainer"], work, threads=1)
