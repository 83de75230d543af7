"""A stale read after a rejoin: a trainer that was expelled rejoins with its old parameters."""

import threading
import time

from group import main, retry, say

LEASE = 2.0
lock = threading.Lock()
last_seen = {}
version = 0


def pull(name):
    with lock:
        last_seen[name] = time.monotonic()
        return version


def push(name, of):
    """Apply a gradient that was computed with the parameters of version ``of``."""
    global version
    with lock:
        late = time.monotonic() - last_seen.get(name, 0) > LEASE
        if late:
            version += 1  # the others went on without this trainer
            return False
        if of != version:
            say(f"stale gradient of version {of} for version {version}")
        version += 1
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
