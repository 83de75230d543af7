"""The chapters of the conformance suite: one module each, ``test_CHAPTER.py``."""

from __future__ import annotations

from typing import NamedTuple


class Chapter(NamedTuple):
    """A part of the contract.

    :ivar title: its contents, in a line.
    """

    name: str
    title: str


#: In the order in which they run: basics come first.
CHAPTERS = (
    Chapter("transport", "messages arrive whole, once and in order, or their loss is reported"),
    Chapter("calls", "each call runs its function once, and its result or error comes back"),
    Chapter("data", "messages arrive unchanged, bit by bit"),
    Chapter("rrefs", "remote references are created, passed on and deleted"),
    Chapter("autograd", "gradients across workers equal those of one process"),
    Chapter("time", "timeouts fire in time, and leave nothing behind"),
    Chapter("life", "workers start, stop, come back and die"),
    Chapter("options", "options are found, checked and used"),
    Chapter("metrics", "metrics and debug information"),
    Chapter("devices", "tensors on accelerators"),
    Chapter("security", "nobody on the network can read messages"),
    Chapter("torch", "torch's own backend-neutral suites (--tier torch)"),
)
