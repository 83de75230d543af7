"""A lost update: updates are repeated until answered, but the last flush is not."""

from group import main, retry, say
from torch.distributed import rpc

BATCH = 4
seen, waiting = set(), []


def update(number):
    if number not in seen:
        seen.add(number)
        waiting.append(number)
    if len(waiting) == BATCH:
        apply()


def apply():
    while waiting:
        say(f"applied {waiting.pop(0)}")


def work(name):
    if name == "trainer":
        for number in range(18):
            retry("server", update, number)
        try:
            rpc.rpc_sync("server", apply)
        except RuntimeError as error:  # the bug: the rest is lost
            say(f"flush failed: {error}")


if __name__ == "__main__":
    main(["server", "trainer"], work)
