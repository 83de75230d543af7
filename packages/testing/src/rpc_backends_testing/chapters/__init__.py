"""The chapters of the conformance suite: one module each, ``test_CHAPTER.py``."""

from __future__ import annotations

from typing import NamedTuple


class Chapter(NamedTuple):
    """A part of the contract.

    :ivar title: what it is about, in a line.
    """

    name: str
    title: str


#: In the order in which they run: what later ones stand on comes first.
CHAPTERS = (
    Chapter("transport", "messages arrive whole, once and in order, or their loss is reported"),
    Chapter("calls", "functions are called, once each, and their results or errors come back"),
    Chapter("data", "what is sent arrives as it was, bit by bit"),
    Chapter("rrefs", "remote references: made, passed on, and deleted"),
    Chapter("autograd", "gradients through workers are those of one process"),
    Chapter("time", "timeouts fire when they should, and leave nothing behind"),
    Chapter("life", "workers start, stop, come back and die"),
    Chapter("options", "options are found, checked and used"),
    Chapter("metrics", "metrics and debug information"),
    Chapter("devices", "tensors on accelerators"),
    Chapter("security", "nobody on the way reads what is sent"),
    Chapter("torch", "torch's own backend-neutral suites (--tier torch)"),
)
