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

#: Bytes of the longest message that is taken from a peer: more than programs send, less than hosts have.
MAX_MESSAGE_BYTES = 16 << 30
#: Bytes of calls that may be on their way to one peer before further ones wait for room.
MAX_UNANSWERED_BYTES = 1 << 30
#: Seconds without a sign of life until a peer is lost, and how many signs it may give in that time.
HEARTBEAT_TIMEOUT = 30.0
HEARTBEATS = 6
_SHORTEST = 0.1
_LONGEST = 6553.0  # libzmq counts tenths of seconds in 16 bits
_MOST_BYTES = 1 << 61


class ZeroMQRpcBackendOptions(RpcBackendOptions):
    """The options of ZEROMQ; see :func:`construct_rpc_backend_options`.

    What is None is taken from the environment when RPC starts, and has a default where that is silent
    too. Only ``rpc_timeout`` and ``init_method`` can be changed later, as torch's can. The secret cannot
    be seen: ``secret`` shows where it is from. Like torch's options, these are not pickled.
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
            init_method=_text(
                "init_method", init_method, "the URL of the place where workers meet"
            ),
        )
        given: dict[str, Any] = {
            "num_worker_threads": _integer("num_worker_threads", num_worker_threads),
            "secret": _secret(secret),
            "secret_file": _path("secret_file", secret_file),
            "encryption": _boolean("encryption", encryption),
            "trusted_network": _boolean("trusted_network", trusted_network),
            "address": _address(address),
            "interface": _optional_text("interface", interface, "the name of one, eth0 say"),
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
                "would take every idle worker for lost; make it a fraction of that."
            )
        if address is not None and interface is not None:
            raise ValueError(
                f"address={address!r} and interface={interface!r} are both given for ZEROMQ; either says "
                "where to listen, so leave one out."
            )
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("rpc_timeout", "init_method"):
            raise AttributeError(
                f"{name} cannot be set on options of ZEROMQ that are made already; give it when you make "
                "them. rpc_timeout and init_method can be."
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
    """Construct the options of one worker; torch calls it. It opens and starts nothing.

    :param rpc_timeout: seconds that a call may take; 0 means any.
    :param init_method: URL of the place where the workers meet.
    :param num_worker_threads: threads that execute requests.
    :param secret: the secret that the workers share, from ``rpc-backends secret``.
    :param secret_file: the file that holds it, for its owner alone to read.
    :param encryption: whether connections are encrypted and authenticated. By default they are, except on
        Unix sockets, which only processes of this user can use; True encrypts within a host too.
    :param trusted_network: whether nobody but the workers is on the network: without a secret or without
        encryption, workers run on one host alone unless this is True.
    :param address: an address or a name of this machine to listen on; by default the one by which it
        reaches the rendezvous host.
    :param interface: the network interface to listen on, in the place of an address.
    :param ports: the ports to listen on, 5000 or "5000-5100"; any by default.
    :param unix_sockets: whether workers of one host talk over Unix sockets, in plain; True insists, None
        does so where it is possible and ``encryption`` is not True.
    :param max_message_bytes: the longest message that is taken from another worker, tensors included.
    :param max_unanswered_bytes: what may be on its way to one worker, without an answer yet, before
        further calls to it wait for room.
    :param heartbeat: seconds between two signs of life on an idle connection; by default a sixth of
        ``heartbeat_timeout``.
    :param heartbeat_timeout: seconds without a sign of life after which a worker is lost.
    :raises TypeError: an option is of a wrong type.
    :raises ValueError: an option has a value that cannot be.
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


# --- one kind of value each ------------------------------------------------------------------------


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
            f"{name}={number} cannot be; ZEROMQ needs 1 or more, and no more than 2**61."
        )
    return number


def _seconds(name: str, value: Any, *, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong_type(name, value, "a number of seconds")
    seconds = float(value)
    if not least <= seconds <= most or seconds == math.inf:
        limits = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
        raise ValueError(f"{name}={value} cannot be; ZEROMQ needs {limits}, in seconds.")
    return seconds


def _interval(name: str, value: Any) -> float:
    return _seconds(name, value, least=_SHORTEST, most=_LONGEST)


def _text(name: str, value: object, meaning: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, value, f"a str: {meaning}")
    if not value.strip():
        raise ValueError(f"{name}={value!r} says nothing; ZEROMQ needs {meaning}.")
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
        # Without the value: bytes, say, may be one.
        raise TypeError(f"secret is of type {type(value).__name__}; ZEROMQ needs a str.")
    return secret.parse(value, "the option secret")


def _address(value: object) -> str | None:
    address = _optional_text("address", value, "an address or a name of this machine")
    if address is not None and _means_every(address):
        raise ValueError(
            f"address={value!r} means every address, and ZEROMQ needs the one by which other workers "
            "reach this one. Leave it out to have it found, or name an interface."
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
            f'ports={value!r} cannot be; ZEROMQ needs a port (5000) or a range ("5000-5100"), from 1 to '
            "65535."
        )
    return parsed
