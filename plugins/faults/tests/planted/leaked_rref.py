"""A leaked RRef: the RRef of a fetch that failed stays in a list."""

from group import main, retry
from torch.distributed import rpc

failed = []


def make(number):
    return number


def finish():
    pass


def work(name):
    if name == "client":
        for number in range(6):
            rref = rpc.remote("server", make, args=(number,))
            try:
                rref.to_here(timeout=1.5)
            except RuntimeError:
                failed.append(rref)  # the bug: it is never removed
                retry("server", make, number)
        del rref
        retry("server", finish)


if __name__ == "__main__":
    main(["server", "client"], work)
