"""The address that workers on this machine listen on, found as torch's TensorPipe agent finds it.

The agent uses the first address of the interface in ``TP_SOCKET_IFNAME``. Without that variable it
uses the first address of the hostname that it can bind. If both fail it uses 127.0.0.1, which workers
on other machines cannot reach, and reports this only in the log. (Seen in torch 2.13.)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rpc_backends_cli.report import Finding, Level, Section
from rpc_backends_core.spi import Interface, interface_of, interfaces, is_loopback

INTERFACE_VARIABLE = "TP_SOCKET_IFNAME"
FALLBACK = "127.0.0.1"


@dataclass(frozen=True)
class Machine:
    """The facts that determine the address.

    :ivar interfaces: the interfaces that are up, IPv4 first, in the system's order.
    :ivar hostname: this machine's name.
    :ivar resolved: the addresses that the hostname resolves to, in order.
    :ivar bindable: the resolved addresses that a socket can bind to.
    """

    interfaces: list[Interface]
    hostname: str
    resolved: list[str]
    bindable: list[str]


@dataclass(frozen=True)
class Address:
    """The address of a worker.

    :ivar how: how it was found.
    :ivar failure: why the fallback is used; None if it is not.
    """

    address: str
    interface: str | None
    how: str
    failure: str | None = None


def machine() -> Machine:
    """Return the facts about this machine."""
    hostname = socket.gethostname()
    resolved = _resolve(hostname)
    return Machine(interfaces(), hostname, resolved, [a for a in resolved if _can_bind(a)])


def choose(here: Machine, environ: Mapping[str, str] = os.environ) -> Address:
    """Return the address that torch's agent chooses."""
    wanted = environ.get(INTERFACE_VARIABLE)
    if wanted is not None:
        how = f"{INTERFACE_VARIABLE}={wanted}"
        for interface in here.interfaces:
            if interface.name == wanted:
                return Address(interface.address, wanted, how)
        return _fallback(here, how, "no interface of that name is up and has an address")
    how = f"hostname {here.hostname!r}"
    if here.bindable:
        return Address(here.bindable[0], interface_of(here.bindable[0], here.interfaces), how)
    if here.resolved:
        return _fallback(
            here,
            how,
            f"it resolves to {here.resolved[0]}, which is not the address of any interface",
        )
    return _fallback(here, how, "it does not resolve to any address")


def own() -> str:
    """Return the address that torch's agent uses on this machine."""
    return choose(machine()).address


def check(here: Machine, environ: Mapping[str, str] = os.environ) -> Section:
    """Return the address that workers would use, and whether other machines can reach it."""
    chosen = choose(here, environ)
    where = f"{chosen.address} ({chosen.interface or 'interface not known'}), by {chosen.how}"
    remedy = f"Set {INTERFACE_VARIABLE} to the interface the workers share{_alternatives(here)}."
    level: Level = "ok"
    if chosen.failure is not None:
        level = "problem" if INTERFACE_VARIABLE in environ else "warning"
        where = f"{where}: {chosen.failure}, so torch uses this fallback address. {remedy}"
    elif is_loopback(chosen.address):
        spread = _several_hosts(here, environ)
        level = "warning" if spread else "note"
        why = f"{spread}, and workers there" if spread else "fine on one machine; workers elsewhere"
        where = f"{where}: {why} cannot reach it. {remedy}"
    data = {**asdict(chosen), "interfaces": [asdict(interface) for interface in here.interfaces]}
    return Section("addresses", "Addresses of workers", [Finding(level, "TensorPipe", where, data)])


def _alternatives(here: Machine) -> str:
    """Return the interfaces that other machines may reach, each with the address torch would use."""
    first: dict[str, str] = {}
    for interface in here.interfaces:
        if not is_loopback(interface.address):
            first.setdefault(interface.name, interface.address)
    return (
        f": {', '.join(f'{name} ({address})' for name, address in first.items())}" if first else ""
    )


def _fallback(here: Machine, how: str, failure: str) -> Address:
    return Address(FALLBACK, interface_of(FALLBACK, here.interfaces), how, failure)


def _several_hosts(here: Machine, environ: Mapping[str, str]) -> str | None:
    """Return evidence for workers on other machines, or None."""
    master = environ.get("MASTER_ADDR", "")
    mine = {interface.address for interface in here.interfaces}
    if master and not any(is_loopback(address) or address in mine for address in _resolve(master)):
        return f"MASTER_ADDR={master} is another machine"
    everywhere, local = environ.get("WORLD_SIZE", ""), environ.get("LOCAL_WORLD_SIZE", "")
    if everywhere.isdigit() and local.isdigit() and int(everywhere) > int(local):
        return f"WORLD_SIZE={everywhere} is more than LOCAL_WORLD_SIZE={local}"
    return None


def _resolve(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except OSError:
        return []
    return [str(answer[4][0]) for answer in answers]


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((address, 0))
    except OSError:
        return False
    return True
