"""A double update: a call without an answer is repeated, also if the update was applied."""

from group import main, retry, say


def update(number):
    say(f"applied {number}")  # the bug: it does not remember the numbers


def work(name):
    if name == "trainer":
        for number in range(12):
            retry("server", update, number)


if __name__ == "__main__":
    # So long that only a fault, and no busy machine, makes the trainer repeat a call.
    main(["server", "trainer"], work, rpc_timeout=60)
