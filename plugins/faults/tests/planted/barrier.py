"""A barrier that counts a dead worker: it forgets the worker, but not the worker's arrival."""

import os
import sys
import threading
import time

from group import retry, run, say
from torch.distributed import rpc

TRAINERS = ("fast", "slow")
STEPS = 3
lock = threading.Condition()
alive, arrived, done, opened = set(TRAINERS), [], set(), []


def arrive(name, number):
    with lock:
        if number == len(opened) and name not in arrived:
            arrived.append(name)
        open_if_complete()


def open_if_complete():
    if len(arrived) >= len(alive):  # the bug: `arrived` may have dead workers
        missing = sorted(alive - set(arrived))
        say(f"step {len(opened)} opened" + (f" without {missing}" if missing else ""))
        arrived.clear()
        opened.append(True)
        lock.notify_all()


def is_open(name, number):
    return len(opened) > number


def finish(name):
    with lock:
        done.add(name)
        lock.notify_all()


def ping():
    pass


def watch():
    """Ping the trainers until all have finished or are dead."""
    while alive - done:
        for name in sorted(alive - done):
            try:
                rpc.rpc_sync(name, ping, timeout=10)
            except RuntimeError:
                with lock:
                    if name not in done:
                        alive.discard(name)
                        open_if_complete()
        time.sleep(0.05)


def work(name):
    if name == "server":
        watch()
        return
    for number in range(STEPS):
        if name == "slow":
            time.sleep(0.6)
        retry("server", arrive, name, number)
        while not retry("server", is_open, name, number):
            time.sleep(0.1)
    retry("server", finish, name)


if __name__ == "__main__":
    statuses = run(["server", *TRAINERS], work, graceful=False)
    sys.stdout.flush()
    os._exit(int(statuses[0] != 0))
