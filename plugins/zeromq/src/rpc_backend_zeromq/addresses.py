"""Chooses the address on which a worker listens.

The address is the one that the user asks for, or else this machine's address on the route to the
rendezvous host. All workers can reach the rendezvous host, so they can usually reach this address too.
A machine's name is not used, because it may resolve to an address that other machines cannot reach.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.rendezvous import Rendezvous
from rpc_backends_agents.engine.errors import AddressError, ExposureError
from rpc_backends_core.spi import Interface, interface_of, interfaces, is_loopback, nearest

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
#: Any port will do: connecting a datagram socket sends nothing.
_ANY_PORT = 9
_LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class Place:
    """An address to listen on.

    :ivar address: numeric, without a scope.
    :ivar scope: the interface of a link-local IPv6 address; None for other addresses.
    :ivar why: how the address was found, for messages.
    """

    address: str
    scope: str | None
    why: str

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on this host can reach the address."""
        return is_loopback(self.address)

    @property
    def scoped(self) -> str:
        """The address in the form that sockets on this host accept, with its scope."""
        return self.address if self.scope is None else f"{self.address}%{self.scope}"


@dataclass(frozen=True)
class Wanted:
    """The address or interface that the user asks for.

    :ivar address: an address or name of this machine.
    :ivar interface: one of its network interfaces.
    :ivar said_by: the option or variable that sets it, for messages.
    """

    address: str | None = None
    interface: str | None = None
    said_by: str = ""


def choose(wanted: Wanted, meeting: Rendezvous, policy: Policy) -> list[Place]:
    """Return the addresses to listen on: one per address family, the preferred one first.

    :raises AddressError: there is none.
    :raises ExposureError: other hosts could reach the address, and ``policy`` does not permit that.
    """
    return permitted(find(wanted, meeting), wanted, meeting, policy)


def permitted(
    places: list[Place], wanted: Wanted, meeting: Rendezvous, policy: Policy
) -> list[Place]:
    """Return ``places`` if ``policy`` permits them, or the loopback address if that is sufficient.

    :raises ExposureError: ``policy`` does not permit ``places``, and loopback is not sufficient.
    """
    exposed = next((place for place in places if not place.is_loopback), None)
    if policy.lack is None or exposed is None:
        return places
    if wanted == Wanted() and _meets_here(meeting, places):
        # Workers on this host can still be peers. A worker on another host fails when it starts.
        return [_loopback(f"{policy.lack}, and {meeting.why} is this host")]
    raise ExposureError(
        f"it would listen on {exposed.scoped} ({exposed.why}), which other hosts can reach, but "
        f"{policy.lack} ZEROMQ runs on the loopback interface only. {policy.remedy}"
    )


def find(wanted: Wanted, meeting: Rendezvous) -> list[Place]:
    """Return the addresses that the user asks for, or those on the route to the rendezvous host."""
    if wanted.address is not None:
        return [_asked_for(wanted.address, wanted.said_by)]
    if wanted.interface is not None:
        return _of_interface(wanted.interface, wanted.said_by)
    if meeting.host is None:
        return [_loopback(meeting.why)]
    return _by_route(meeting.host, meeting.why)


def interface_name(place: Place) -> str | None:
    """Return the name of the network interface that has the address; None if there is none."""
    return place.scope or interface_of(place.address, interfaces())


def is_link_local(address: str) -> bool:
    """Return whether an address is a link-local IPv6 address, which needs an interface to be usable."""
    parsed = ipaddress.ip_address(address)
    return parsed.version == 6 and parsed.is_link_local


def source_for(address: str, scope: str | None = None) -> str | None:
    """Return this machine's address on the route to ``address``; None without a route. Sends nothing."""
    target = address if scope is None else f"{address}%{scope}"
    try:
        places = _routes(target, "")
    except OSError:
        return None
    return places[0].address if places else None


def tcp_endpoint(address: str, port: int | str) -> str:
    """Return an address and a port as an endpoint."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _by_route(host: str, why: str) -> list[Place]:
    try:
        places = _routes(host, why)
    except OSError as error:
        raise AddressError(
            f"the rendezvous host {host!r} ({why}) cannot be resolved on this host: {error}. Give "
            "all workers a "
            "name or an address that each can reach."
        ) from error
    if not places:
        raise AddressError(
            f"this host has no route to the rendezvous host {host!r} ({why}). {_remedy()}"
        )
    if any(place.is_loopback for place in places):
        return [_loopback(places[0].why)]
    return places


def _routes(host: str, why: str) -> list[Place]:
    """Return this machine's address on the route to ``host``, for each address family with a route."""
    by_family: dict[int, Place] = {}
    for family, _, _, _, target in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
        if family in by_family or family not in _FAMILIES:
            continue
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as trial:
                trial.connect(target)
                own = trial.getsockname()
        except OSError:
            continue  # no route in this family; the other may have one
        by_family[family] = _place(own, f"route to {host}, {why}")
    return list(by_family.values())


def _place(own: tuple[object, ...], why: str) -> Place:
    address = str(own[0]).partition("%")[0]
    scope = None
    if is_link_local(address):
        index = own[3]
        assert isinstance(index, int)
        scope = socket.if_indextoname(index)
    return Place(address, scope, why)


def _asked_for(wanted: str, said_by: str) -> Place:
    """Return the first address that ``wanted`` (a name or an address) gives and that can be bound."""
    try:
        answers = socket.getaddrinfo(wanted, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(
            f"{said_by} is neither an address nor a name that resolves to one: {error}. {_remedy()}"
        ) from error
    for family, _, _, _, target in answers:
        if family not in _FAMILIES:
            continue
        place = _place(target, said_by)
        if ipaddress.ip_address(place.address).is_unspecified:
            raise AddressError(
                f"{said_by} stands for all addresses; peers need a specific one. {_remedy()}"
            )
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.bind(target)
        except OSError:
            continue
        return place
    raise AddressError(f"{said_by} is not an address of this machine. {_remedy()}")


def _of_interface(wanted: str, said_by: str) -> list[Place]:
    here = interfaces()
    addresses = [interface.address for interface in here if interface.name == wanted]
    if not addresses:
        close = nearest(wanted, {interface.name for interface in here})
        hint = f" Did you mean {close!r}?" if close else ""
        raise AddressError(
            f"{said_by} is not an interface of this machine that is up and has an address.{hint} "
            f"{_remedy(here)}"
        )
    four = [address for address in addresses if ":" not in address]
    six = [address for address in addresses if ":" in address]
    routed = [address for address in six if not is_link_local(address)]
    # Every IPv6 interface has a link-local address, so it is used only if there is no other address.
    chosen = [*four[:1], *routed[:1]] or six[:1]
    return [
        Place(address, wanted if is_link_local(address) else None, said_by) for address in chosen
    ]


def _meets_here(meeting: Rendezvous, places: Iterable[Place]) -> bool:
    """Return whether the rendezvous host is this machine."""
    assert meeting.host is not None
    try:
        answers = socket.getaddrinfo(meeting.host, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    own = {place.address for place in places}
    return any(str(target[0]).partition("%")[0] in own for *_, target in answers)


def _loopback(why: str) -> Place:
    for address in _LOOPBACK:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.bind((address, 0))
        except OSError:
            continue
        return Place(address, None, why)
    raise AddressError(f"this machine has no loopback interface that is up ({why}). {_remedy()}")


def _remedy(here: list[Interface] | None = None) -> str:
    """Return the addresses that the user can choose here, as a sentence for messages."""
    there = ", ".join(f"{interface.name} {interface.address}" for interface in here or interfaces())
    return (
        "Set the option address or interface to one that all workers can reach. This machine "
        f"has: {there}."
    )
