"""Which address a worker listens on: the one asked for, or else the one by which it reaches the store.

All workers reach the host at which they meet, so the address with which this machine reaches it is one
that they can reach too. Nothing says that a machine's name resolves to such an address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from rpc_backend_zeromq.errors import AddressError, ExposureError
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.rendezvous import Rendezvous
from rpc_backends_core.spi import Interface, interface_of, interfaces, is_loopback, nearest

_FAMILIES = (socket.AF_INET, socket.AF_INET6)
#: Any: a datagram socket that is connected sends nothing.
_ANY_PORT = 9
_LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class Place:
    """An address to listen on.

    :ivar address: a numeric one, without a scope.
    :ivar scope: the interface of a link-local IPv6 address, None for others.
    :ivar why: how it was found.
    """

    address: str
    scope: str | None
    why: str

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this host reach it."""
        return is_loopback(self.address)

    @property
    def scoped(self) -> str:
        """The address as sockets of this host take it."""
        return self.address if self.scope is None else f"{self.address}%{self.scope}"


@dataclass(frozen=True)
class Wanted:
    """What the user asks for.

    :ivar address: an address or a name of this machine.
    :ivar interface: one of its network interfaces.
    :ivar said_by: the option or the variable that asks, for messages.
    """

    address: str | None = None
    interface: str | None = None
    said_by: str = ""


def choose(wanted: Wanted, meeting: Rendezvous, policy: Policy) -> list[Place]:
    """Return the addresses to listen on, one for each family of addresses, the preferred one first.

    :raises AddressError: there is none.
    :raises ExposureError: others could reach it, and ``policy`` does not keep them out.
    """
    return permitted(find(wanted, meeting), wanted, meeting, policy)


def permitted(
    places: list[Place], wanted: Wanted, meeting: Rendezvous, policy: Policy
) -> list[Place]:
    """Return ``places``, or the loopback interface where ``policy`` permits no other and that will do.

    :raises ExposureError: ``policy`` does not permit them.
    """
    exposed = next((place for place in places if not place.is_loopback), None)
    if policy.lack is None or exposed is None:
        return places
    if wanted == Wanted() and _meets_here(meeting, places):
        # Workers of this host can be its peers all the same; one elsewhere is refused where it starts.
        return [_loopback(f"{policy.lack}, and {meeting.why} is this host")]
    raise ExposureError(
        f"it would listen on {exposed.scoped} ({exposed.why}), which others can reach, and {policy.lack} "
        f"ZEROMQ runs on the loopback interface only. {policy.remedy}"
    )


def find(wanted: Wanted, meeting: Rendezvous) -> list[Place]:
    """Return the addresses that are asked for, or that the route to the rendezvous host gives."""
    if wanted.address is not None:
        return [_asked_for(wanted.address, wanted.said_by)]
    if wanted.interface is not None:
        return _of_interface(wanted.interface, wanted.said_by)
    if meeting.host is None:
        return [_loopback(meeting.why)]
    return _by_route(meeting.host, meeting.why)


def interface_name(place: Place) -> str | None:
    """Return the name of the network interface that has the address, None if it is not found."""
    return place.scope or interface_of(place.address, interfaces())


def is_link_local(address: str) -> bool:
    """Return whether an address means nothing without the interface that it is on."""
    parsed = ipaddress.ip_address(address)
    return parsed.version == 6 and parsed.is_link_local


def source_for(address: str, scope: str | None = None) -> str | None:
    """Return this machine's address on the way to ``address``, None if there is none. Nothing is sent."""
    target = address if scope is None else f"{address}%{scope}"
    try:
        places = _routes(target, "")
    except OSError:
        return None
    return places[0].address if places else None


def tcp_endpoint(address: str, port: int | str) -> str:
    """Return an address and a port in the form of ZeroMQ."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _by_route(host: str, why: str) -> list[Place]:
    try:
        places = _routes(host, why)
    except OSError as error:
        raise AddressError(
            f"the rendezvous host {host!r} ({why}) has no address here: {error}. Give all workers a "
            "name or an address that each can reach."
        ) from error
    if not places:
        raise AddressError(
            f"there is no route from here to the rendezvous host {host!r} ({why}). {_remedy()}"
        )
    if any(place.is_loopback for place in places):
        return [_loopback(places[0].why)]
    return places


def _routes(host: str, why: str) -> list[Place]:
    """Return this machine's address on the way to ``host``, for each family that has a way."""
    found: dict[int, Place] = {}
    for family, _, _, _, target in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
        if family in found or family not in _FAMILIES:
            continue
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as trial:
                trial.connect(target)
                own = trial.getsockname()
        except OSError:
            continue  # no way in this family; the other may have one
        found[family] = _place(own, f"route to {host}, {why}")
    return list(found.values())


def _place(own: tuple[object, ...], why: str) -> Place:
    address = str(own[0]).partition("%")[0]
    scope = None
    if is_link_local(address):
        index = own[3]
        assert isinstance(index, int)
        scope = socket.if_indextoname(index)
    return Place(address, scope, why)


def _asked_for(wanted: str, said_by: str) -> Place:
    """Return the first address of a name, or the address itself, that can be bound here."""
    try:
        answers = socket.getaddrinfo(wanted, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(
            f"{said_by} is no address and no name that has one: {error}. {_remedy()}"
        ) from error
    for family, _, _, _, target in answers:
        if family not in _FAMILIES:
            continue
        place = _place(target, said_by)
        if ipaddress.ip_address(place.address).is_unspecified:
            raise AddressError(f"{said_by} means every address; peers need one. {_remedy()}")
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.bind(target)
        except OSError:
            continue
        return place
    raise AddressError(f"{said_by} is not an address of this machine. {_remedy()}")


def _of_interface(wanted: str, said_by: str) -> list[Place]:
    here = interfaces()
    addresses = [one.address for one in here if one.name == wanted]
    if not addresses:
        close = nearest(wanted, {one.name for one in here})
        hint = f" Did you mean {close!r}?" if close else ""
        raise AddressError(
            f"{said_by} is no interface of this machine that is up and has an address.{hint} "
            f"{_remedy(here)}"
        )
    four = [one for one in addresses if ":" not in one]
    six = [one for one in addresses if ":" in one]
    routed = [one for one in six if not is_link_local(one)]
    # A link-local address is there wherever there is IPv6, and only good if nothing else is.
    chosen = [*four[:1], *routed[:1]] or six[:1]
    return [Place(one, wanted if is_link_local(one) else None, said_by) for one in chosen]


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
    """Return what can be asked for here."""
    there = ", ".join(f"{one.name} {one.address}" for one in here or interfaces())
    return f"Set the option address or interface to one of this machine that the workers share: {there}."
