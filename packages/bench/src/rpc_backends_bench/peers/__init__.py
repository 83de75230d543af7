"""Peers: other libraries that call functions in another process, measured beside the backends."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

#: The rows that apply to peers too. The others are about groups or torch's own functions.
ROWS = ("latency.noop", "latency.tensor", "throughput.inflight", "size.echo", "size.oneway")


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    :ivar label: its name in the results.
    :ivar module: the module that exists if the library is installed.
    :ivar callee: our module that defines ``open_callee`` for it.
    :ivar distribution: the distribution to install.
    """

    label: str
    module: str
    callee: str
    distribution: str


#: All peers, by their name on the command line.
KNOWN = {
    "ray": Peer("Ray", "ray", f"{__name__}.ray_actor", "ray"),
    "monarch": Peer("Monarch", "monarch", f"{__name__}.monarch_endpoint", "torchmonarch"),
}


def installed() -> list[str]:
    """Return the names of the peers that are installed."""
    return [name for name, peer in KNOWN.items() if find_spec(peer.module) is not None]
