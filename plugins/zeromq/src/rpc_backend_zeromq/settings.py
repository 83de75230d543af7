"""The settings of one worker: its options, and environment variables for options that are None."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rpc_backend_zeromq.addresses import Wanted
from rpc_backend_zeromq.options import BACKEND, ZeroMQRpcBackendOptions
from rpc_backend_zeromq.policy import Policy
from rpc_backend_zeromq.ports import Ports
from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.certificates import Files
from rpc_backends_core.spi import SettingError


@dataclass(frozen=True)
class Settings:
    """The settings of one worker.

    :ivar fips: whether encryption uses OpenSSL's FIPS provider only.
    :ivar wanted: where the user asks the worker to listen.
    :ivar unix_sockets: True requires them, False disables them, None uses them where possible. They are
        not encrypted.
    """

    policy: Policy
    fips: bool
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
    options = ZeroMQRpcBackendOptions() if options is None else options
    encryption = ZeroMQRpcBackendOptions.encryption.resolve(options, environ)
    fips = ZeroMQRpcBackendOptions.fips.resolve(options, environ)
    if fips and encryption is False:
        raise SettingError(
            "fips is on and encryption is off, but fips is about encryption. Turn encryption on "
            f"({ZeroMQRpcBackendOptions.encryption.variable}), or fips off "
            f"({ZeroMQRpcBackendOptions.fips.variable})."
        )
    known = secret.find(BACKEND, options.secret, options.secret_file, environ)
    certificates = Files.find(options, environ, known)
    if certificates is not None and encryption is False:
        raise SettingError(
            "the worker has a certificate and encryption is off, but certificates are shown over TLS. "
            f"Turn encryption on ({ZeroMQRpcBackendOptions.encryption.variable}), or leave the "
            f"certificate out ({ZeroMQRpcBackendOptions.certificate.variable})."
        )
    return Settings(
        policy=Policy(
            secret=known,
            certificates=certificates,
            encryption=encryption is not False,
            trusted_network=ZeroMQRpcBackendOptions.trusted_network.resolve(options, environ),
        ),
        fips=fips,
        wanted=_wanted(options, environ),
        ports=ZeroMQRpcBackendOptions.ports.resolve(options, environ),
        unix_sockets=_unix_sockets(
            None if certificates else encryption,  # with certificates they are encrypted
            ZeroMQRpcBackendOptions.unix_sockets.resolve(options, environ),
        ),
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
            f"({ZeroMQRpcBackendOptions.encryption.variable}) or unix_sockets=True "
            f"({ZeroMQRpcBackendOptions.unix_sockets.variable})."
        )
    return False


def _wanted(options: ZeroMQRpcBackendOptions, environ: Mapping[str, str]) -> Wanted:
    # Where the program says where to listen, the variables do not count.
    source = {} if options.address is not None or options.interface is not None else environ
    address, said_by = ZeroMQRpcBackendOptions.address.find(options, source)
    interface, interface_said_by = ZeroMQRpcBackendOptions.interface.find(options, source)
    if address is not None and interface is not None:
        raise SettingError(
            f"{ZeroMQRpcBackendOptions.address.variable}={address!r} and "
            f"{ZeroMQRpcBackendOptions.interface.variable}={interface!r} are both set; "
            "each sets where to listen, so unset one."
        )
    if address is not None:
        return Wanted(address=address, said_by=said_by)
    if interface is not None:
        return Wanted(interface=interface, said_by=interface_said_by)
    return Wanted()
