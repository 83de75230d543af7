"""The options of ZEROMQ."""

from __future__ import annotations

import ipaddress
import math
import numbers
import os
from typing import Any

from torch.distributed.rpc import RpcBackendOptions
from torch.distributed.rpc.constants import (
    DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC,
)

from rpc_backend_zeromq import ports, secret
from rpc_backend_zeromq.ports import Ports
from rpc_backend_zeromq.secret import Secret

#: Bytes of the longest message accepted from a peer: more than programs send, less than hosts have.
MAX_MESSAGE_BYTES = 16 << 30
#: Bytes of unanswered calls to one peer before further calls to it wait.
MAX_UNANSWERED_BYTES = 1 << 30
#: Seconds without a heartbeat until a peer is lost, and the number of heartbeats sent in that time.
HEARTBEAT_TIMEOUT = 30.0
HEARTBEATS = 6
_SHORTEST = 0.1
_LONGEST = 6553.0  # libzmq counts tenths of seconds in 16 bits
_MOST_BYTES = 1 << 61


class ZeroMQRpcBackendOptions(RpcBackendOptions):
    """The options of ZEROMQ; see :func:`construct_rpc_backend_options`.

    An option that is None is read from its environment variable when RPC starts, or else gets its
    default. As with torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and
    the options cannot be pickled. The secret's text is not shown: ``secret`` shows only its source.
    """

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
        heartbeat: float | None = None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        super().__init__(
            rpc_timeout=_seconds("rpc_timeout", rpc_timeout, least=0, most=math.inf),
            init_method=_text("init_method", init_method, "the URL of the rendezvous"),
        )
        given: dict[str, Any] = {
            "num_worker_threads": _integer("num_worker_threads", num_worker_threads),
            "secret": _secret(secret),
            "secret_file": _path("secret_file", secret_file),
            "encryption": _boolean("encryption", encryption),
            "trusted_network": _boolean("trusted_network", trusted_network),
            "address": _address(address),
            "interface": _optional_text(
                "interface", interface, "the name of an interface, for example eth0"
            ),
            "ports": _ports(ports),
            "unix_sockets": _boolean("unix_sockets", unix_sockets),
            "max_message_bytes": _integer("max_message_bytes", max_message_bytes),
            "max_unanswered_bytes": _integer("max_unanswered_bytes", max_unanswered_bytes),
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

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("rpc_timeout", "init_method"):
            raise AttributeError(
                f"{name} cannot be changed on existing ZEROMQ options; pass it when you create "
                "them. Only rpc_timeout and init_method can be changed."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        shown = {"rpc_timeout": self.rpc_timeout, "init_method": self.init_method, **self.__dict__}
        values = ", ".join(
            f"{name}={value!r}" for name, value in shown.items() if value is not None
        )
        return f"{type(self).__name__}({values})"


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
    :raises TypeError: an option has the wrong type.
    :raises ValueError: an option has an invalid value.
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
        heartbeat=heartbeat,
        heartbeat_timeout=heartbeat_timeout,
    )


# --- validation, one kind of value each -------------------------------------------------------------


def _wrong_type(name: str, value: object, wanted: str) -> TypeError:
    return TypeError(f"{name}={value!r} is of type {type(value).__name__}; ZEROMQ needs {wanted}.")


def _boolean(name: str, value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise _wrong_type(name, value, "True or False")


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _wrong_type(name, value, "an int")
    number = int(value)
    if not 1 <= number <= _MOST_BYTES:
        raise ValueError(
            f"{name}={number} is out of range; ZEROMQ needs an integer from 1 to 2**61."
        )
    return number


def _seconds(name: str, value: Any, *, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong_type(name, value, "a number of seconds")
    seconds = float(value)
    if not least <= seconds <= most or seconds == math.inf:
        limits = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
        raise ValueError(f"{name}={value} is out of range; ZEROMQ needs {limits} seconds.")
    return seconds


def _interval(name: str, value: Any) -> float:
    return _seconds(name, value, least=_SHORTEST, most=_LONGEST)


def _text(name: str, value: object, meaning: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, value, f"a str: {meaning}")
    if not value.strip():
        raise ValueError(f"{name}={value!r} is empty; ZEROMQ needs {meaning}.")
    return value.strip()


def _optional_text(name: str, value: object, meaning: str) -> str | None:
    return None if value is None else _text(name, value, meaning)


def _path(name: str, value: object) -> str | None:
    return None if value is None else _text(name, _fspath(value), "the path of a file")


def _fspath(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _secret(value: object) -> Secret | None:
    if value is None:
        return None
    if not isinstance(value, str):
        # The message leaves out the value: it may be a secret, for example as bytes.
        raise TypeError(f"secret is of type {type(value).__name__}; ZEROMQ needs a str.")
    return secret.parse(value, "the option secret")


def _address(value: object) -> str | None:
    address = _optional_text("address", value, "an address or a name of this machine")
    if address is not None and _means_every(address):
        raise ValueError(
            f"address={value!r} stands for all addresses, but ZEROMQ needs the one at which other "
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
        raise _wrong_type("ports", value, 'an int (5000) or a str ("5000-5100")')
    parsed = ports.parse(str(value))
    if parsed is None:
        raise ValueError(
            f'ports={value!r} is invalid; ZEROMQ needs a port (5000) or a range ("5000-5100"), from 1 to '
            "65535."
        )
    return parsed
