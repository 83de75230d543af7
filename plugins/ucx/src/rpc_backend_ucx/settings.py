"""The settings of one worker, from its options or, where these are None, from environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from rpc_backend_ucx import environment, names
from rpc_backends_agents.common import secret, variables
from rpc_backends_agents.common.errors import ExposureError
from rpc_backends_agents.common.secret import Secret
from rpc_backends_core.spi import SettingError, nearest

if TYPE_CHECKING:
    from rpc_backend_ucx.options import UCXRpcBackendOptions

#: Seconds. On an idle machine a small call is answered within this time, so the worker still polls when
#: the next call arrives. Other values were not compared.
POLL_TIME = 1e-4
_LONGEST_POLL_TIME = 10.0
#: Seconds between two checks of peers on other hosts.
_KEEPALIVE = 1.0
#: Every worker has these settings. They make UCX notice lost peers over shared memory too, and leave
#: nothing in /dev/shm.
_ALWAYS = {
    "POSIX_ERROR_HANDLING": "y",
    "POSIX_USE_PROC_LINK": "y",
    # With less than this free in /dev/shm, UCX crashes when it needs more; see shared_memory.
    "POSIX_SHM_MIN_SIZE": "0",
    # The transport keeps memory until no peer can read it any more, so UCX may copy from other processes.
    "CMA_MEMORY_INVALIDATE": "y",
}
#: Settings that the program or UCX's variables may change.
_USUAL = {
    # The receiver reads a large message within a host from the sender's memory. UCX's own choice can also
    # be that the sender writes it into the receiver's memory, which a receiver that has given up waiting
    # may have released. The README compares the times of the choices.
    "RNDV_SCHEME": "get_zcopy",
    # With the 8 and 64 KiB of UCX, an echo of 64 MiB over loopback took 2.5 times as long.
    "TCP_TX_SEG_SIZE": "1m",
    "TCP_RX_SEG_SIZE": "1m",
}
TRUST = (
    "If only the workers can reach this network, declare that for every worker "
    f"({environment.TRUSTED_NETWORK}=1, or the option trusted_network=True). Otherwise use ZEROMQ, which "
    "encrypts"
)


@dataclass(frozen=True)
class Settings:
    """The settings of one worker.

    :ivar secret: the secret that peers must have; None to require none.
    :ivar trusted_network: whether the user has declared that only workers can reach the network.
    :ivar transports: the names of UCX's transports.
    :ivar net_devices: the names of network devices; None means all.
    :ivar poll_time: seconds to poll after a message.
    :ivar keepalive: seconds between two checks of peers on other hosts.
    :ivar more: other settings of UCX, by name without ``UCX_``.
    :ivar device_memory: UCX's names of the memory that it moves itself, by torch's types of devices.
    """

    secret: Secret | None
    trusted_network: bool
    transports: tuple[str, ...]
    net_devices: tuple[str, ...] | None
    poll_time: float
    keepalive: float
    more: dict[str, str]
    device_memory: dict[str, str]

    def config(self, *, watches_processes: bool) -> list[tuple[str, str]]:
        """Return UCX's settings, by name without ``UCX_``.

        :param watches_processes: whether this worker can watch for the end of processes on this host.
        """
        needs_keepalive = self.trusted_network or not watches_processes
        found = {
            **self.more,
            **_ALWAYS,
            "TLS": ",".join(self.transports),
            "KEEPALIVE_INTERVAL": f"{self.keepalive:g}s" if needs_keepalive else "inf",
        }
        if self.net_devices is not None:
            found["NET_DEVICES"] = ",".join(self.net_devices)
        return list(found.items())


def settings_of(
    options: UCXRpcBackendOptions | None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of a worker with ``options`` (None: default options) in ``environ``.

    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    :raises ExposureError: others could reach the transports, and the network is not trusted.
    """
    given = options.secret if options else None
    file = options.secret_file if options else None
    trusted = options.trusted_network if options else None
    if trusted is None:
        trusted = variables.boolean(environment.TRUSTED_NETWORK, environ)
    asked = options.transports if options else None
    said_by = f"the option transports={list(asked)}" if asked else ""
    for name in (environment.TRANSPORTS, "UCX_TLS"):
        if asked is None and (text := variables.text(name, environ)) is not None:
            asked, said_by = _transports(name, text), f"{name}={text}"
    devices = options.net_devices if options else None
    for name in (environment.NET_DEVICES, "UCX_NET_DEVICES"):
        if devices is None and (text := variables.text(name, environ)) is not None:
            devices = tuple(word.strip() for word in text.split(","))
    poll_time = options.poll_time if options else None
    device_memory = options.device_memory if options else {}
    return Settings(
        secret=secret.find(environment.BACKEND, given, file, environ),
        trusted_network=trusted is True,
        transports=_permitted(asked, said_by, trusted is True, device_memory),
        net_devices=devices,
        poll_time=_poll_time(environ) if poll_time is None else poll_time,
        keepalive=options.keepalive if options else _KEEPALIVE,
        more={name: value for name, value in _USUAL.items() if f"UCX_{name}" not in environ}
        | _without_prefix(options.settings if options else {}),
        device_memory=device_memory,
    )


def check_names(settings: Settings, known: Iterable[str]) -> None:
    """Check that UCX has the settings that the program has passed.

    :param known: the names of UCX's settings, without ``UCX_``.
    :raises SettingError: UCX has no such setting.
    """
    there = set(known)
    for name in settings.more:
        if name not in there:
            close = nearest(name, there)
            hint = f" Did you mean UCX_{close}?" if close else ""
            raise SettingError(f"UCX has no setting UCX_{name}.{hint}")


def _permitted(
    asked: tuple[str, ...] | None, said_by: str, trusted: bool, device_memory: Mapping[str, str]
) -> tuple[str, ...]:
    of_devices = tuple(
        chain.from_iterable(names.DEVICE_TRANSPORTS[memory] for memory in device_memory.values())
    )
    if trusted:
        return asked or tuple(dict.fromkeys((*names.TRUSTED, *of_devices)))
    private = tuple(dict.fromkeys((*names.PRIVATE, *of_devices)))
    exposed = [name for name in asked or () if name not in private]
    if exposed:
        raise ExposureError(
            f"{said_by} would let others reach the worker through {', '.join(exposed)}, and UCX "
            "neither encrypts nor authenticates. Without a trusted network the transports are "
            f"{', '.join(private)}. {TRUST}."
        )
    return asked or private


def _transports(variable: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        why = names.wrong_transport(word)
        if why is not None:
            raise SettingError(f"{variable}={text!r}: {why}")
    return words


def _poll_time(environ: Mapping[str, str]) -> float:
    text = variables.text(environment.POLL_TIME, environ)
    if text is None:
        return POLL_TIME
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST_POLL_TIME:
        raise SettingError(
            f"{environment.POLL_TIME}={text!r} is not a number of seconds from 0 to "
            f"{_LONGEST_POLL_TIME:g}."
        )
    return value


def _without_prefix(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix("UCX_"): value for name, value in settings.items()}
