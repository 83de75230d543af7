"""The options of ZEROMQ."""

from __future__ import annotations

import ipaddress
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch.distributed.rpc.constants import (
    DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC,
)

from rpc_backend_zeromq import ports
from rpc_backend_zeromq.environment import BACKEND
from rpc_backend_zeromq.ports import Ports
from rpc_backends_agents.common.device_options import (
    DeviceOptions,
    check_device_maps,
    check_devices,
)
from rpc_backends_agents.common.option_checks import OptionChecks
from rpc_backends_agents.common.secret import Secret

#: Bytes of the longest message accepted from a peer: more than programs send, less than hosts have.
MAX_MESSAGE_BYTES = 16 << 30
#: If this many bytes of calls to one peer are unanswered, further calls to that peer wait.
MAX_UNANSWERED_BYTES = 1 << 30
#: Seconds without a heartbeat until a peer is lost, and the number of heartbeats sent in that time.
HEARTBEAT_TIMEOUT = 30.0
HEARTBEATS = 6
_SHORTEST = 0.1
_LONGEST = 6553.0  # libzmq counts tenths of seconds in 16 bits

_checks = OptionChecks(BACKEND)


class ZeroMQRpcBackendOptions(DeviceOptions):
    """The options of ZEROMQ; see :func:`construct_rpc_backend_options`.

    An option that is None is read from its environment variable when RPC starts, or else gets its
    default. As with torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and
    the options cannot be pickled. The secret's text is not shown: ``secret`` shows only its source.
    """

    BACKEND = BACKEND

    num_worker_threads: int
    secret: Secret | None
    secret_file: str | None
    encryption: bool | None
    trusted_network: bool | None
    address: str | None
    interface: str | None
    ports: Ports | None
    unix_sockets: bool | None
    max_message_bytes: int
    max_unanswered_bytes: int
    heartbeat: float
    heartbeat_timeout: float

    def __init__(
        self,
        *,
        num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
        secret: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        encryption: bool | None = None,
        trusted_network: bool | None = None,
        address: str | None = None,
        interface: str | None = None,
        ports: str | int | None = None,
        unix_sockets: bool | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_unanswered_bytes: int = MAX_UNANSWERED_BYTES,
        device_maps: Mapping[str, Mapping[Any, Any]] | None = None,
        devices: Iterable[Any] | None = None,
        heartbeat: float | None = None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        super().__init__(
            rpc_timeout=_checks.timeout("rpc_timeout", rpc_timeout),
            init_method=_checks.text("init_method", init_method, "the URL of the rendezvous"),
        )
        given: dict[str, Any] = {
            "num_worker_threads": _checks.integer("num_worker_threads", num_worker_threads),
            "secret": _checks.secret(secret),
            "secret_file": _checks.path("secret_file", secret_file),
            "encryption": _checks.boolean("encryption", encryption),
            "trusted_network": _checks.boolean("trusted_network", trusted_network),
            "address": _address(address),
            "interface": _checks.optional_text(
                "interface", interface, "the name of an interface, for example eth0"
            ),
            "ports": _ports(ports),
            "unix_sockets": _checks.boolean("unix_sockets", unix_sockets),
            "max_message_bytes": _checks.integer("max_message_bytes", max_message_bytes),
            "max_unanswered_bytes": _checks.integer("max_unanswered_bytes", max_unanswered_bytes),
            "device_maps": check_device_maps(_checks, device_maps),
            "devices": check_devices(_checks, devices),
            "heartbeat_timeout": _interval("heartbeat_timeout", heartbeat_timeout),
        }
        given["heartbeat"] = (
            given["heartbeat_timeout"] / HEARTBEATS
            if heartbeat is None
            else _interval("heartbeat", heartbeat)
        )
        if given["heartbeat"] > given["heartbeat_timeout"]:
            raise ValueError(
                f"heartbeat={heartbeat} is longer than heartbeat_timeout={heartbeat_timeout}, so ZEROMQ "
                "would report every idle worker as lost. Make heartbeat a fraction of heartbeat_timeout."
            )
        if address is not None and interface is not None:
            raise ValueError(
                f"address={address!r} and interface={interface!r} are both given to ZEROMQ; each sets "
                "where to listen, so leave one out."
            )
        self.__dict__.update(given)


def construct_rpc_backend_options(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
    secret: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    encryption: bool | None = None,
    trusted_network: bool | None = None,
    address: str | None = None,
    interface: str | None = None,
    ports: str | int | None = None,
    unix_sockets: bool | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_unanswered_bytes: int = MAX_UNANSWERED_BYTES,
    device_maps: Mapping[str, Mapping[Any, Any]] | None = None,
    devices: Iterable[Any] | None = None,
    heartbeat: float | None = None,
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
) -> ZeroMQRpcBackendOptions:
    """Construct the options of one worker, without opening or starting anything. Torch calls this.

    :param rpc_timeout: seconds that a call may take; 0 means no limit.
    :param init_method: the URL of the rendezvous.
    :param num_worker_threads: threads that execute requests.
    :param secret: the secret that the workers share, from ``rpc-backends secret``.
    :param secret_file: the file that holds the secret; only its owner may have access to it.
    :param encryption: whether connections are encrypted and authenticated. By default TCP connections
        are, and Unix sockets, which only processes of this user can use, are not. True also encrypts
        connections within a host.
    :param trusted_network: whether only the workers can reach the network. Without a secret or without
        encryption, workers run on a single host unless this is True.
    :param address: an address or name of this machine to listen on; by default the address on the route
        to the rendezvous host.
    :param interface: the network interface to listen on, instead of an address.
    :param ports: the ports to listen on: 5000 or "5000-5100"; by default any port.
    :param unix_sockets: whether workers on one host communicate over Unix sockets, without encryption.
        True requires them; None uses them where possible, unless ``encryption`` is True.
    :param max_message_bytes: the size of the longest message accepted from another worker, in bytes,
        tensors included.
    :param max_unanswered_bytes: the bytes of calls to one worker that may be unanswered before further
        calls to it wait.
    :param heartbeat: seconds between two heartbeats on an idle connection; by default a sixth of
        ``heartbeat_timeout``.
    :param heartbeat_timeout: seconds without a heartbeat after which a worker is lost.
    :param device_maps: by callee, a map from this worker's devices to the callee's devices, for example
        ``{"worker1": {"cuda:0": "cuda:1"}}``. Answers use the inverted map.
    :param devices: the accelerators of this worker that RPC may use. The default is those in the device
        maps of this worker and of its callers.
    :raises TypeError: an option has the wrong type.
    :raises ValueError: an option has an invalid value.
    :raises RuntimeError: torch knows no such device.
    """
    return ZeroMQRpcBackendOptions(
        num_worker_threads=num_worker_threads,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        secret=secret,
        secret_file=secret_file,
        encryption=encryption,
        trusted_network=trusted_network,
        address=address,
        interface=interface,
        ports=ports,
        unix_sockets=unix_sockets,
        max_message_bytes=max_message_bytes,
        max_unanswered_bytes=max_unanswered_bytes,
        device_maps=device_maps,
        devices=devices,
        heartbeat=heartbeat,
        heartbeat_timeout=heartbeat_timeout,
    )


# --- validation of what only ZEROMQ has ---------------------------------------------------------------


def _interval(name: str, value: Any) -> float:
    return _checks.seconds(name, value, least=_SHORTEST, most=_LONGEST)


def _address(value: object) -> str | None:
    address = _checks.optional_text("address", value, "an address or a name of this machine")
    if address is not None and _means_every(address):
        raise ValueError(
            f"address={value!r} stands for all addresses, but ZEROMQ needs the address at which other "
            "workers "
            "reach this worker. Leave address out to have it detected, or set interface."
        )
    return address


def _means_every(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return address == "*"


def _ports(value: Any) -> Ports | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | numbers.Integral):
        raise _checks.wrong_type("ports", value, 'an int (5000) or a str ("5000-5100")')
    parsed = ports.parse(str(value))
    if parsed is None:
        raise ValueError(
            f'ports={value!r} is invalid; ZEROMQ needs a port (5000) or a range ("5000-5100"), from 1 to '
            "65535."
        )
    return parsed
