"""The network interfaces of this machine, for backends that choose an address to listen on."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

# Linux: <linux/sockios.h> and <linux/if.h>.
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP_AND_RUNNING = 0x1 | 0x40
_IPV6_TABLE = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Interface:
    """An address of this machine and the name of its network interface."""

    name: str
    address: str


def interface_of(address: str, among: list[Interface]) -> str | None:
    """Return the name of the interface with ``address``; 127.0.0.0/8 all belongs to loopback."""
    for interface in among:
        if interface.address == address:
            return interface.name
    if is_loopback(address):
        return next((interface.name for interface in among if is_loopback(interface.address)), None)
    return None


def interfaces() -> list[Interface]:
    """Return the addresses of the interfaces that are up: of each one IPv4 and all IPv6 addresses."""
    if not sys.platform.startswith("linux"):
        return []
    import fcntl

    interfaces: list[Interface] = []
    names = [name for _, name in socket.if_nameindex()]
    up: set[str] = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name in names:
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # the interface is gone or has no IPv4 address
                flags = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)[16:18]
                if struct.unpack("H", flags)[0] & _UP_AND_RUNNING != _UP_AND_RUNNING:
                    continue
                up.add(name)
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                interfaces.append(Interface(name, socket.inet_ntoa(answer[20:24])))
    with contextlib.suppress(OSError):  # a machine without IPv6
        for line in _IPV6_TABLE.read_text().splitlines():
            digits, *_, name = line.split()
            if name in up:
                interfaces.append(
                    Interface(name, str(ipaddress.IPv6Address(bytes.fromhex(digits))))
                )
    return interfaces


def is_loopback(address: str) -> bool:
    """Return whether a numeric address (with or without a scope) is a loopback address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
