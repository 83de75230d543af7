"""What calls functions in other processes without torch's RPC: measured beside backends, if installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

#: The rows that they have too; the others are of groups, or of torch's own functions.
ROWS = ("latency.noop", "latency.tensor", "throughput.inflight", "size.echo", "size.oneway")


@dataclass(frozen=True)
class Peer:
    """One of them.

    :ivar label: its name in results.
    :ivar module: what is imported where it is installed.
    :ivar callee: our module with ``open_callee``, which needs that.
    :ivar distribution: what to install.
    """

    label: str
    module: str
    callee: str
    distribution: str


#: By the name on the command line.
KNOWN = {
    "ray": Peer("Ray", "ray", f"{__name__}.ray_actor", "ray"),
    "monarch": Peer("Monarch", "monarch", f"{__name__}.monarch_endpoint", "torchmonarch"),
}


def installed() -> list[str]:
    """Return the names of those that are installed."""
    return [name for name, peer in KNOWN.items() if find_spec(peer.module) is not None]
