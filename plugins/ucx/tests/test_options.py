"""Options, variables and transports: what is accepted, and what is refused with the reason."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from rpc_backend_ucx import UCXRpcBackendOptions
from rpc_backend_ucx.options import construct_rpc_backend_options
from rpc_backend_ucx.settings import Settings, check_names, settings_of
from rpc_backends_agents.engine.errors import ExposureError
from rpc_backends_core.spi import SettingError

P = "RPC_BACKENDS_UCX_"


def construct(**options: Any) -> UCXRpcBackendOptions:
    return construct_rpc_backend_options(60.0, "env://", **options)


def config(**options: Any) -> dict[str, str]:
    return dict(settings_of(construct(**options), {}).config(watches_processes=True))


def test_handler_and_class_have_the_same_options() -> None:
    handler = inspect.signature(construct_rpc_backend_options).parameters
    of_class = inspect.signature(UCXRpcBackendOptions).parameters

    assert set(handler) == set(of_class)
    for name, parameter in handler.items():
        if name not in ("rpc_timeout", "init_method"):
            assert parameter.default == of_class[name].default, name
        assert f":param {name}: " in (inspect.getdoc(construct_rpc_backend_options) or "")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"transports": ["tpc"]}, ValueError, "Did you mean 'tcp'?"),
        ({"transports": []}, ValueError, "is empty"),
        ({"transports": 3}, TypeError, "a list of str"),
        ({"net_devices": ["eth0 eth1"]}, ValueError, "which is not one name"),
        ({"poll_time": -1}, ValueError, "out of range"),
        ({"poll_time": "1"}, TypeError, "a number of seconds"),
        ({"settings": {"RNDV_THRESH": "1k"}}, ValueError, "start with UCX_"),
        ({"settings": {"UCX_TLS": "tcp"}}, ValueError, "use the option transports"),
        ({"settings": {"UCX_RNDV_THRESH": None}}, TypeError, "a str or a number"),
        ({"settings": "UCX_RNDV_THRESH=1k"}, TypeError, "a dict"),
        ({"secret": "no secret"}, ValueError, "is not a secret"),
        ({"trusted_network": 1}, TypeError, "True or False"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        construct(**options)


def test_settings_of_ucx_arrive() -> None:
    values = config(
        trusted_network=True,
        transports="tcp, posix",
        net_devices=["eth0"],
        settings={"UCX_RNDV_THRESH": 4096},
        keepalive=3,
    )

    assert values["TLS"] == "tcp,posix"
    assert values["NET_DEVICES"] == "eth0"
    assert values["RNDV_THRESH"] == "4096"
    assert values["KEEPALIVE_INTERVAL"] == "3s"


def test_a_setting_that_ucx_does_not_have_is_refused() -> None:
    settings = settings_of(construct(settings={"UCX_RNDV_TRESH": "1"}), {})

    with pytest.raises(SettingError, match="Did you mean UCX_RNDV_THRESH"):
        check_names(settings, {"RNDV_THRESH", "TLS"})


# --- which transports are permitted ----------------------------------------------------------------


def test_only_private_shared_memory_is_used_by_default() -> None:
    assert config()["TLS"] == "self,posix,cma"
    assert config(transports=["posix"])["TLS"] == "posix"


@pytest.mark.parametrize("name", ["tcp", "sysv", "rc", "all", "shm"])
def test_other_transports_need_a_trusted_network(name: str) -> None:
    with pytest.raises(ExposureError, match=re.escape(f"through {name}, and UCX neither")):
        settings_of(construct(transports=[name]), {})
    for variable in (f"{P}TRANSPORTS", "UCX_TLS"):
        with pytest.raises(ExposureError, match=f"^{variable}={name} would let others"):
            settings_of(None, {variable: name})

    assert settings_of(None, {"UCX_TLS": name, f"{P}TRUSTED_NETWORK": "1"}).transports == (name,)


def test_a_trusted_network_uses_tcp_and_shared_memory_by_default() -> None:
    assert config(trusted_network=True)["TLS"] == "self,posix,cma,tcp"


def test_options_take_precedence_over_variables() -> None:
    environ = {f"{P}POLL_TIME": "0.5", f"{P}NET_DEVICES": "eth1", "UCX_NET_DEVICES": "eth2"}

    def settings(options: UCXRpcBackendOptions | None) -> Settings:
        return settings_of(options, environ)

    assert (settings(None).native["poll_time"], settings(None).net_devices) == (0.5, ("eth1",))
    assert settings(construct(poll_time=0)).native["poll_time"] == 0
    with pytest.raises(SettingError, match="is not a number of seconds"):
        settings_of(None, {f"{P}POLL_TIME": "soon"})
