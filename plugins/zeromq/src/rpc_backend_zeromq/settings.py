"""The settings of one worker: its options, and environment variables for options that are None."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpc_backend_zeromq import environment, ports
from rpc_backend_zeromq.addresses import Wanted
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.ports import Ports
from rpc_backends_agents.common import secret
from rpc_backends_core.spi import SettingError

if TYPE_CHECKING:
    from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions


@dataclass(frozen=True)
class Settings:
    """The settings of one worker.

    :ivar wanted: where the user asks the worker to listen.
    :ivar unix_sockets: True requires them, False disables them, None uses them where possible. They are
        not encrypted.
    """

    policy: Policy
    wanted: Wanted
    ports: Ports | None
    unix_sockets: bool | None


def settings_of(
    options: ZeroMQRpcBackendOptions | None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of a worker with ``options`` (None: default options) in ``environ``.

    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    """

    def boolean(option: bool | None, variable: str) -> bool | None:
        return environment.boolean(variable, environ) if option is None else option

    given, file, encryption, trusted, port_range, unix = (
        (None,) * 6
        if options is None
        else (
            options.secret,
            options.secret_file,
            options.encryption,
            options.trusted_network,
            options.ports,
            options.unix_sockets,
        )
    )
    encryption = boolean(encryption, environment.ENCRYPTION)
    return Settings(
        policy=Policy(
            secret=secret.find(environment.BACKEND, given, file, environ),
            encryption=encryption is not False,
            trusted_network=boolean(trusted, environment.TRUSTED_NETWORK) is True,
        ),
        wanted=_wanted(options, environ),
        ports=port_range or _ports(environ),
        unix_sockets=_unix_sockets(encryption, boolean(unix, environment.UNIX_SOCKETS)),
    )


def _unix_sockets(encryption: bool | None, wanted: bool | None) -> bool | None:
    """Return whether to use Unix sockets. If the user requests encryption, the answer is False.

    :raises SettingError: both encryption and Unix sockets are requested.
    """
    if encryption is not True:
        return wanted
    if wanted is True:
        raise SettingError(
            "both encryption and Unix sockets are requested, but Unix sockets are not encrypted: only "
            "processes of this user can use them. Leave out either encryption=True "
            f"({environment.ENCRYPTION}) or unix_sockets=True ({environment.UNIX_SOCKETS})."
        )
    return False


def _wanted(options: ZeroMQRpcBackendOptions | None, environ: Mapping[str, str]) -> Wanted:
    if options is not None and options.address is not None:
        return Wanted(address=options.address, said_by=f"the option address={options.address!r}")
    if options is not None and options.interface is not None:
        return Wanted(
            interface=options.interface, said_by=f"the option interface={options.interface!r}"
        )
    address = environment.text(environment.ADDRESS, environ)
    interface = environment.text(environment.INTERFACE, environ)
    if address is not None and interface is not None:
        raise SettingError(
            f"{environment.ADDRESS}={address!r} and {environment.INTERFACE}={interface!r} are both set; "
            "each sets where to listen, so unset one."
        )
    if address is not None:
        return Wanted(address=address, said_by=f"{environment.ADDRESS}={address}")
    if interface is not None:
        return Wanted(interface=interface, said_by=f"{environment.INTERFACE}={interface}")
    return Wanted()


def _ports(environ: Mapping[str, str]) -> Ports | None:
    text = environment.text(environment.PORTS, environ)
    if text is None:
        return None
    parsed = ports.parse(text)
    if parsed is None:
        raise SettingError(
            f"{environment.PORTS}={text!r} is neither a port nor a range of ports. Example: "
            f"{environment.PORTS}=5000-5100"
        )
    return parsed
