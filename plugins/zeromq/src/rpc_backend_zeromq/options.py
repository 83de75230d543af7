"""The options of ZEROMQ, each declared once."""

from __future__ import annotations

import ipaddress
import numbers
from typing import Any

from rpc_backend_zeromq import ports as port_ranges
from rpc_backend_zeromq.ports import Ports
from rpc_backends_agents.engine.declarations import Option, VariableOption, construct_handler
from rpc_backends_agents.engine.kinds import YES_OR_NO, Kind, integer, seconds, text
from rpc_backends_agents.engine.option_checks import OptionChecks
from rpc_backends_agents.engine.options import CertifiedOptions
from rpc_backends_core.spi import SettingError

#: The name of the backend.
BACKEND = "ZEROMQ"
#: The number of heartbeats that are sent in the time after which a peer without one is lost.
HEARTBEATS = 6
_INTERVAL = seconds(0.1, 6553)
#: The most connections to one peer for large messages; kMaxLanes in csrc.
MOST_BULK_CONNECTIONS = 16


def _address(checks: OptionChecks, name: str, value: object) -> str:
    address = checks.text(name, value, "an address or a name of this machine")
    if _means_every(address):
        raise ValueError(
            f"{name}={value!r} stands for all addresses, but ZEROMQ needs the address at which other "
            "workers "
            f"reach this worker. Leave {name} out to have it detected, or set interface."
        )
    return address


def _means_every(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return address == "*"


def _ports(checks: OptionChecks, name: str, value: Any) -> Ports:
    if isinstance(value, bool) or not isinstance(value, str | numbers.Integral):
        raise checks.wrong_type(name, value, 'an int (5000) or a str ("5000-5100")')
    parsed = port_ranges.parse(str(value))
    if parsed is None:
        raise ValueError(
            f'{name}={value!r} is invalid; ZEROMQ needs a port (5000) or a range ("5000-5100"), from 1 '
            "to "
            "65535."
        )
    return parsed


def _read_ports(variable: str, value: str) -> Ports:
    parsed = port_ranges.parse(value)
    if parsed is None:
        raise SettingError(
            f"{variable}={value!r} is neither a port nor a range of ports. Example: {variable}=5000-5100"
        )
    return parsed


def _heartbeat(checks: OptionChecks, name: str, value: Any) -> Any:
    return None if value is None else _INTERVAL.check(checks, name, value)


class ZeroMQRpcBackendOptions(CertifiedOptions):
    """The options of ZEROMQ.

    An option that is None is read from its environment variable when RPC starts, or else gets its
    default. As with torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and
    the options cannot be pickled. The secret's text is not shown: ``secret`` shows only its source.
    """

    BACKEND = BACKEND

    encryption: VariableOption[bool | None, bool] = VariableOption(
        YES_OR_NO,
        default=None,
        default_text="between hosts",
        meaning="whether connections are encrypted and authenticated. By default TCP connections are, "
        "and "
        "Unix sockets, which only processes of this user can use, are not. True also encrypts "
        "connections "
        "within a host; False turns encryption and authentication over TCP off",
    )
    fips: VariableOption[bool] = VariableOption(
        YES_OR_NO,
        default=False,
        meaning="whether connections over TCP use only algorithms of OpenSSL's FIPS provider, which must "
        "be installed, or ``init_rpc`` fails. Set it alike for all workers",
    )
    trusted_network: VariableOption[bool] = VariableOption(
        YES_OR_NO,
        default=False,
        meaning="whether only the workers can reach the network. Without a secret or without encryption, "
        "workers run on a single host unless this is True",
    )
    address: VariableOption[str | None, str] = VariableOption(
        Kind(_address, "an address or a name of this machine", lambda _variable, value: value),
        default=None,
        default_text="by route",
        meaning="an address or name of this machine to listen on; by default the address on the route to "
        "the rendezvous host",
    )
    interface: VariableOption[str | None, str] = VariableOption(
        text("the name of an interface, for example eth0"),
        default=None,
        default_text="by route",
        meaning="the network interface to listen on; it cannot be combined with an address",
    )
    ports: VariableOption[Ports | None, str | int] = VariableOption(
        Kind(_ports, "``5000`` or ``5000-5015``", _read_ports),
        default=None,
        default_text="any",
        meaning='the ports to listen on: 5000 or "5000-5100"; by default any port. A range needs a '
        "port for "
        "each worker of the host",
    )
    unix_sockets: VariableOption[bool | None, bool] = VariableOption(
        YES_OR_NO,
        default=None,
        default_text="where possible",
        meaning="whether workers on one host communicate over Unix sockets, without encryption. True "
        "requires them, and ``init_rpc`` fails without; False uses TCP; None uses them where possible, "
        "unless "
        "``encryption`` is True",
    )
    bulk_connections: VariableOption[int] = VariableOption(
        integer(1, MOST_BULK_CONNECTIONS, "connections"),
        default=4,
        meaning="connections for messages of 64 KiB or more to each worker with a round trip of 5 ms or "
        "more, in addition to the one for small messages. With a shorter one, and within a host, there "
        "is one such connection",
        native=True,
    )
    heartbeat: Option[float, float | None] = Option(
        Kind(_heartbeat, _INTERVAL.values),
        default=None,
        default_text="a sixth of ``heartbeat_timeout``",
        meaning="seconds between two heartbeats on an idle connection; by default a sixth of "
        "``heartbeat_timeout``",
        native=True,
    )
    heartbeat_timeout: Option[float] = Option(
        _INTERVAL,
        default=30.0,
        meaning="seconds after which a worker is lost that sends no heartbeat and, during a message to "
        "it, "
        "reads nothing",
        native=True,
    )

    @classmethod
    def check_together(cls, passed: dict[str, Any], checked: dict[str, Any]) -> None:
        """Check the two heartbeats, and where to listen; complete ``heartbeat``."""
        if checked["heartbeat"] is None:
            checked["heartbeat"] = checked["heartbeat_timeout"] / HEARTBEATS
        if checked["heartbeat"] > checked["heartbeat_timeout"]:
            raise ValueError(
                f"heartbeat={passed['heartbeat']} is longer than "
                f"heartbeat_timeout={passed['heartbeat_timeout']}, so ZEROMQ would report every idle "
                "worker "
                "as lost. Make heartbeat a fraction of heartbeat_timeout."
            )
        address, interface = passed["address"], passed["interface"]
        if address is not None and interface is not None:
            raise ValueError(
                f"address={address!r} and interface={interface!r} are both given to ZEROMQ; each sets "
                "where to listen, so leave one out."
            )


construct_rpc_backend_options = construct_handler(ZeroMQRpcBackendOptions)
