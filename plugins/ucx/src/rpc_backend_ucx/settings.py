"""The settings of one worker, from its options or, where these are None, from environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rpc_backend_ucx import names
from rpc_backend_ucx.options import BACKEND, UCXRpcBackendOptions
from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.certificates import Files
from rpc_backends_agents.engine.errors import ExposureError
from rpc_backends_agents.engine.secret import Secret
from rpc_backends_core.spi import SettingError, nearest

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
    # Small messages are served between two segments. UCX copies 8 of 512 KiB in a row, which takes 1 ms.
    "CMA_SEG_SIZE": "256k",
    "CMA_TX_QUOTA": "1",
    # With the 8 and 64 KiB of UCX, an echo of 64 MiB over loopback took 2.5 times as long.
    "TCP_TX_SEG_SIZE": "1m",
    "TCP_RX_SEG_SIZE": "1m",
}
TRUST = (
    "If only the workers can reach this network, declare that for every worker "
    f"({UCXRpcBackendOptions.trusted_network.variable}=1, or the option trusted_network=True). "
    "Otherwise use ZEROMQ, which "
    "encrypts"
)


@dataclass(frozen=True)
class Settings:
    """The settings of one worker.

    :ivar secret: the secret that peers must have; None to require none.
    :ivar certificates: the files of this worker's certificate; None if workers have none.
    :ivar trusted_network: whether the user has declared that only workers can reach the network.
    :ivar transports: the names of UCX's transports.
    :ivar net_devices: the names of network devices; None means all.
    :ivar keepalive: seconds between two checks of peers on other hosts.
    :ivar more: other settings of UCX, by name without ``UCX_``.
    :ivar device_memory: UCX's names of the memory that it moves itself, by torch's types of devices.
    :ivar native: the options that only the transport in C++ uses, by the names that it gives them.
    """

    secret: Secret | None
    certificates: Files | None
    trusted_network: bool
    transports: tuple[str, ...]
    net_devices: tuple[str, ...] | None
    keepalive: float
    more: dict[str, str]
    device_memory: dict[str, str]
    native: dict[str, Any]

    def config(self, *, watches_processes: bool) -> list[tuple[str, str]]:
        """Return UCX's settings, by name without ``UCX_``.

        :param watches_processes: whether this worker can watch for the end of processes on this host.
        """
        needs_keepalive = self.trusted_network or not watches_processes
        config = {
            **self.more,
            **_ALWAYS,
            "TLS": ",".join(self.transports),
            "KEEPALIVE_INTERVAL": f"{self.keepalive:g}s" if needs_keepalive else "inf",
        }
        if self.net_devices is not None:
            config["NET_DEVICES"] = ",".join(self.net_devices)
        return list(config.items())


def settings_of(
    options: UCXRpcBackendOptions | None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of a worker with ``options`` (None: default options) in ``environ``.

    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    :raises ExposureError: others could reach the transports, and the network is not trusted.
    """
    options = UCXRpcBackendOptions() if options is None else options
    trusted = UCXRpcBackendOptions.trusted_network.resolve(options, environ)
    known = secret.find(BACKEND, options.secret, options.secret_file, environ)
    transports, said_by = UCXRpcBackendOptions.transports.find(options, environ)
    return Settings(
        secret=known,
        certificates=Files.find(options, environ, known),
        trusted_network=trusted,
        transports=_permitted(transports, said_by, trusted, options.device_memory),
        net_devices=UCXRpcBackendOptions.net_devices.resolve(options, environ),
        keepalive=options.keepalive,
        more={name: value for name, value in _USUAL.items() if f"UCX_{name}" not in environ}
        | _without_prefix(options.settings),
        device_memory=options.device_memory,
        native=options.native(environ),
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


def _without_prefix(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix("UCX_"): value for name, value in settings.items()}
