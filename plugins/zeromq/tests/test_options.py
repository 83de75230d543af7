"""Options: their defaults, and the errors for invalid ones."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.rpc import RpcBackendOptions

from rpc_backend_zeromq import ZeroMQRpcBackendOptions
from rpc_backend_zeromq._native import Transport, TransportError
from rpc_backend_zeromq.options import MOST_BULK_CONNECTIONS, construct_rpc_backend_options
from rpc_backend_zeromq.ports import Ports
from rpc_backends_agents.engine import secret


def construct(**options: Any) -> ZeroMQRpcBackendOptions:
    return construct_rpc_backend_options(60.0, "env://", **options)


def test_defaults_are_torchs_or_left_to_the_environment() -> None:
    options = ZeroMQRpcBackendOptions()

    assert isinstance(options, RpcBackendOptions)
    assert (options.rpc_timeout, options.init_method) == (60.0, "env://")
    assert options.num_worker_threads == 16
    for name in ("secret", "secret_file", "encryption", "trusted_network", "address", "interface"):
        assert getattr(options, name) is None
    assert options.ports is options.unix_sockets is None
    assert options.heartbeat < options.heartbeat_timeout
    assert repr(construct()) == repr(options)


def test_class_and_handler_have_the_same_documented_options() -> None:
    handler = inspect.signature(construct_rpc_backend_options).parameters
    of_class = inspect.signature(ZeroMQRpcBackendOptions).parameters

    assert set(handler) == set(of_class)
    for name, parameter in handler.items():
        if name not in ("rpc_timeout", "init_method"):
            assert parameter.default == of_class[name].default, name
        assert f":param {name}: " in (inspect.getdoc(construct_rpc_backend_options) or "")


def test_options_keep_the_given_values(text: str, tmp_path: Path) -> None:
    options = construct(
        num_worker_threads=3,
        secret=text,
        secret_file=tmp_path / "secret",
        encryption=False,
        trusted_network=True,
        address="10.0.0.5",
        ports="5000-5100",
        unix_sockets=False,
        max_message_bytes=1000,
        max_unanswered_bytes=2000,
        heartbeat=3,
        heartbeat_timeout=7,
    )

    assert options.secret == secret.parse(text, "here")
    assert options.secret_file == str(tmp_path / "secret")
    assert (options.encryption, options.trusted_network, options.unix_sockets) == (
        False,
        True,
        False,
    )
    assert (options.address, options.ports) == ("10.0.0.5", Ports(5000, 5100))
    assert (options.max_message_bytes, options.max_unanswered_bytes) == (1000, 2000)
    assert (options.heartbeat, options.heartbeat_timeout) == (3.0, 7.0)
    assert construct(interface="eth0").interface == "eth0"
    assert construct(ports=5000).ports == Ports(5000, 5000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_worker_threads", 2.0),
        ("num_worker_threads", True),
        ("secret", b"rpcsecret1-abc"),
        ("secret_file", 3),
        ("encryption", "no"),
        ("encryption", 0),
        ("trusted_network", 1),
        ("address", 3),
        ("interface", ["eth0"]),
        ("ports", 5000.0),
        ("ports", (5000, 5100)),
        ("unix_sockets", "off"),
        ("max_message_bytes", "1 GiB"),
        ("max_unanswered_bytes", None),
        ("heartbeat", "often"),
        ("heartbeat_timeout", True),
    ],
)
def test_a_wrong_type_is_a_type_error_naming_the_option(name: str, value: object) -> None:
    with pytest.raises(
        TypeError, match=rf"{name}.* is of type {type(value).__name__}; ZEROMQ needs"
    ):
        construct(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_worker_threads", 0),
        ("secret_file", " "),
        ("address", ""),
        ("address", "0.0.0.0"),
        ("address", "::"),
        ("address", "*"),
        ("interface", ""),
        ("ports", 0),
        ("ports", 65536),
        ("ports", "5100-5000"),
        ("ports", "5000-"),
        ("ports", "http"),
        ("ports", "-5000"),
        ("max_message_bytes", 0),
        ("max_message_bytes", 2**63),
        ("max_unanswered_bytes", -1),
        ("heartbeat", 0.01),
        ("heartbeat", 0),
        ("heartbeat", -1),
        ("heartbeat", float("nan")),
        ("heartbeat_timeout", 0),
        ("heartbeat_timeout", 6554),
        ("heartbeat_timeout", float("inf")),
    ],
)
def test_an_invalid_value_is_a_value_error_showing_it(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.*ZEROMQ needs") as caught:
        construct(**{name: value})
    assert str(value) in str(caught.value)


def test_an_unknown_option_is_a_type_error_naming_it() -> None:
    with pytest.raises(TypeError, match="num_threads"):
        construct(num_threads=3)


@pytest.mark.parametrize(
    ("rpc_timeout", "error"), [("soon", TypeError), (-1, ValueError), (float("nan"), ValueError)]
)
def test_an_invalid_rpc_timeout_is_refused_by_name(rpc_timeout: Any, error: type) -> None:
    with pytest.raises(error, match="rpc_timeout"):
        construct_rpc_backend_options(rpc_timeout, "env://")


def test_address_and_interface_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"address='10.0.0.5' and interface='eth0'.*leave one out"):
        construct(address="10.0.0.5", interface="eth0")


def test_the_default_heartbeat_is_a_sixth_of_its_timeout() -> None:
    assert construct(heartbeat_timeout=6).heartbeat == 1.0


def test_a_heartbeat_longer_than_its_timeout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"heartbeat=7 is longer than heartbeat_timeout=6"):
        construct(heartbeat=7, heartbeat_timeout=6)


def test_only_rpc_timeout_and_init_method_can_be_changed() -> None:
    first, second = construct(), construct()

    first.rpc_timeout, first.init_method = 5, "file:///somewhere"

    assert (first.rpc_timeout, first.init_method) == (5.0, "file:///somewhere")
    assert (second.rpc_timeout, second.init_method) == (60.0, "env://")
    with pytest.raises(AttributeError, match="encryption cannot be changed"):
        first.encryption = False


# --- the secret ----------------------------------------------------------------------------------


def test_an_invalid_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="the option secret is not a secret") as caught:
        construct(secret=text[:-3])

    assert text[15:30] not in str(caught.value)
    assert text[15:30] not in repr(caught.getrepr(showlocals=False))


def test_no_repr_or_attribute_shows_the_secret(text: str) -> None:
    options = construct(secret=text)

    shown = repr(options) + repr(options.secret) + repr(vars(options)) + str(options.secret)
    assert text[15:30] not in shown
    assert "<secret from the option secret, fingerprint " in repr(options)


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_options_can_be_neither_pickled_nor_copied(duplicate: Any, text: str) -> None:
    """Torch's own options cannot be pickled either."""
    for options in (construct(), construct(secret=text)):
        with pytest.raises(TypeError, match="pickle"):
            duplicate(options)
    with pytest.raises(TypeError, match="SECRET_FILE"):
        pickle.dumps(construct(secret=text).secret)


def test_the_most_bulk_connections_are_those_of_the_protocol() -> None:
    def transport(bulk_connections: int) -> Transport:
        native = {**ZeroMQRpcBackendOptions().native(), "bulk_connections": bulk_connections}
        return Transport(public_key=None, secret_key=None, handshake_timeout=1, **native)

    transport(MOST_BULK_CONNECTIONS).close(0)
    with pytest.raises(TransportError, match=f"at most {MOST_BULK_CONNECTIONS}, not"):
        transport(MOST_BULK_CONNECTIONS + 1)
