"""Chooses a peer's endpoint: its Unix socket if this worker can access it, otherwise TCP."""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend_zeromq import addresses
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.publication import Publication, UnixSocket, parse_tcp
from rpc_backend_zeromq.unix_sockets import Node
from rpc_backends_agents.engine.errors import AddressError
from rpc_backends_agents.engine.host import Host
from rpc_backends_core.spi import is_loopback


@dataclass(frozen=True)
class Surroundings:
    """What a worker knows about itself when it chooses a peer's endpoint.

    :ivar scopes: the interfaces on which this worker listens with link-local addresses.
    :ivar unix_sockets: whether this worker connects to Unix sockets.
    """

    name: str
    host: Host
    scopes: tuple[str, ...]
    unix_sockets: bool
    policy: Policy


def choose(peer: Publication, me: Surroundings) -> str:
    """Return the endpoint of ``peer`` to connect to.

    :raises AddressError: this worker cannot reach any endpoint of ``peer``; the text says why and what
        to do.
    """
    if me.unix_sockets and peer.unix is not None and _sees(peer.unix, peer, me):
        return f"ipc://{peer.unix.path}"
    why = []
    for endpoint in peer.tcp:
        reachable, reason = _reachable(endpoint, peer, me)
        if reachable is not None:
            return reachable
        why.append(reason)
    raise AddressError(
        f"worker {me.name!r} cannot reach worker {peer.name!r} (rank {peer.rank}): "
        f"{'; '.join(why) or 'it does not listen on any address'}. {_remedy(peer, me)}"
    )


def _sees(socket: UnixSocket, peer: Publication, me: Surroundings) -> bool:
    """Return whether the path leads to the peer's socket; in another container it may not."""
    return peer.host.kernel == me.host.kernel and Node.of_socket(socket.path) == socket.node


def _reachable(endpoint: str, peer: Publication, me: Surroundings) -> tuple[str | None, str]:
    """Return the endpoint in the form that sockets here accept; or None, and why it is unreachable."""
    parsed = parse_tcp(endpoint)
    assert parsed is not None  # a publication holds only valid endpoints
    address, port = parsed
    said = f"it listens on {address} ({peer.place})"
    if is_loopback(address):
        if peer.host == me.host:
            return endpoint, ""
        return None, f"{said}, the loopback interface of another host or container"
    if not addresses.is_link_local(address):
        if addresses.source_for(address) is not None:
            return endpoint, ""
        return None, f"{said}, and there is no route to that address"
    for scope in me.scopes:
        if addresses.source_for(address, scope) is not None:
            return addresses.tcp_endpoint(f"{address}%{scope}", port), ""
    return None, f"{said}, a link-local address, and the interface that reaches it is unknown"


def _remedy(peer: Publication, me: Surroundings) -> str:
    loopback = all(is_loopback(address) for address in _addresses(peer))
    if loopback and me.policy.lack is not None:
        return (
            f"{me.policy.lack.capitalize()} ZEROMQ runs on a single host only. {me.policy.remedy}"
        )
    return (
        f"Set the option address or interface of worker {peer.name!r} (RPC_BACKENDS_ZEROMQ_ADDRESS, "
        "RPC_BACKENDS_ZEROMQ_INTERFACE) to one that all workers reach, or MASTER_ADDR to an address "
        "that means the same on every host."
    )


def _addresses(peer: Publication) -> list[str]:
    return [parsed[0] for parsed in map(parse_tcp, peer.tcp) if parsed is not None]
