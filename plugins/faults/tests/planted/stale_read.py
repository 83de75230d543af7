"""A stale read after a rejoin: a trainer that was expelled rejoins with its old parameters."""

import threading
import time

from group import main, retry, say

LEASE = 2.0
lock = threading.Lock()
last_seen = {}
steps = []  # one for each version


def pull(name):
    with lock:
        last_seen[name] = time.monotonic()
        return len(steps)


def push(name, of):
    """Apply a gradient that was computed with the parameters of version ``of``."""
    with lock:
        late = time.monotonic() - last_seen.get(name, 0) > LEASE
        if late:
            steps.append(name)  # the others went on without this trainer
            return False
        if of != len(steps):
            say(f"stale gradient of version {of} for version {len(steps)}")
        steps.append(name)
        return True


def rejoin(name):
    with lock:
        last_seen[name] = time.monotonic()


def work(name):
    if name == "trainer":
        for _ in range(8):
            of = retry("server", pull, name)
            if not retry("server", push, name, of):
                retry("server", rejoin, name)
                retry("server", push, name, of)  # the bug: it does not pull again


if __name__ == "__main__":
    main(["server", "trainer"], work)
