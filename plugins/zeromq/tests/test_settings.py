"""Options override environment variables, which are parsed strictly."""

from __future__ import annotations

import logging

import pytest

from rpc_backend_zeromq.addresses import Wanted
from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
from rpc_backend_zeromq.ports import Ports
from rpc_backend_zeromq.settings import settings_of
from rpc_backends_agents.engine import secret, variables
from rpc_backends_core.spi import SettingError

PREFIX = "RPC_BACKENDS_ZEROMQ_"


def test_the_defaults_encrypt_and_trust_no_network() -> None:
    for options in (None, ZeroMQRpcBackendOptions()):
        settings = settings_of(options, {})

        assert settings.policy.secret is None
        assert settings.policy.encryption
        assert not settings.policy.trusted_network
        assert not settings.fips
        assert settings.wanted == Wanted()
        assert settings.ports is settings.unix_sockets is None


def test_variables_set_what_options_leave_open(text: str) -> None:
    environ = {
        f"{PREFIX}SECRET": text,
        f"{PREFIX}ENCRYPTION": "off",
        f"{PREFIX}TRUSTED_NETWORK": "Yes",
        f"{PREFIX}ADDRESS": " 10.0.0.5 ",
        f"{PREFIX}PORTS": "5000 - 5010",
        f"{PREFIX}UNIX_SOCKETS": "0",
    }

    settings = settings_of(ZeroMQRpcBackendOptions(), environ)

    assert settings == settings_of(None, environ)
    assert settings.policy.secret == secret.parse(text, "here")
    assert (settings.policy.encryption, settings.policy.trusted_network) == (False, True)
    assert settings.wanted == Wanted(address="10.0.0.5", said_by=f"{PREFIX}ADDRESS=10.0.0.5")
    assert (settings.ports, settings.unix_sockets) == (Ports(5000, 5010), False)
    assert settings_of(None, {f"{PREFIX}INTERFACE": "eth0"}).wanted.interface == "eth0"


def test_options_override_variables() -> None:
    environ = {
        f"{PREFIX}ENCRYPTION": "0",
        f"{PREFIX}TRUSTED_NETWORK": "1",
        f"{PREFIX}ADDRESS": "10.0.0.5",
        f"{PREFIX}PORTS": "5000",
        f"{PREFIX}UNIX_SOCKETS": "1",
    }
    options = ZeroMQRpcBackendOptions(
        encryption=True, trusted_network=False, interface="eth1", ports=6000, unix_sockets=False
    )

    settings = settings_of(options, environ)

    assert (settings.policy.encryption, settings.policy.trusted_network) == (True, False)
    assert settings.wanted == Wanted(interface="eth1", said_by="the option interface='eth1'")
    assert (settings.ports, settings.unix_sockets) == (Ports(6000, 6000), False)


def test_encryption_and_unix_sockets_exclude_each_other() -> None:
    with pytest.raises(
        SettingError, match="Unix sockets are requested, but Unix sockets are not encrypted"
    ):
        settings_of(ZeroMQRpcBackendOptions(encryption=True), {f"{PREFIX}UNIX_SOCKETS": "1"})


def test_fips_without_encryption_is_an_error() -> None:
    with pytest.raises(SettingError, match="fips is on and encryption is off"):
        settings_of(ZeroMQRpcBackendOptions(fips=True), {f"{PREFIX}ENCRYPTION": "0"})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ENCRYPTION", "perhaps", "neither true nor false. Set it to 1 or 0"),
        ("TRUSTED_NETWORK", "2", "neither true nor false"),
        ("UNIX_SOCKETS", "tmp", "neither true nor false"),
        ("PORTS", "5000,5001", "neither a port nor a range of ports. Example: "),
    ],
)
def test_an_invalid_variable_is_an_error_showing_it(name: str, value: str, why: str) -> None:
    with pytest.raises(SettingError, match=rf"^{PREFIX}{name}='{value}' is {why}"):
        settings_of(None, {f"{PREFIX}{name}": value})


def test_address_and_interface_variables_exclude_each_other() -> None:
    with pytest.raises(SettingError, match=r"ADDRESS='a' and .*INTERFACE='b' are both set"):
        settings_of(None, {f"{PREFIX}ADDRESS": "a", f"{PREFIX}INTERFACE": "b"})


def test_an_unknown_variable_is_logged_with_a_suggestion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "rpc_backends.zeromq"):
        variables.warn_of_unknown(
            "ZEROMQ",
            ZeroMQRpcBackendOptions.variables(),
            {
                f"{PREFIX}SECERT": "rpcsecret1-abc",
                f"{PREFIX}PORTS": "1",
                f"{PREFIX}XYZZY": "1",
                "OTHER": "2",
            },
        )

    with_suggestion, with_list = caplog.messages
    assert (
        f"does not use the environment variable {PREFIX}SECERT. Did you mean {PREFIX}SECRET?"
        in with_suggestion
    )
    assert f"{PREFIX}XYZZY. It uses {PREFIX}SECRET, " in with_list
    assert "rpcsecret1" not in caplog.text
