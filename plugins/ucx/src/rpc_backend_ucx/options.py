"""The options of UCX, each declared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rpc_backend_ucx import names
from rpc_backends_agents.engine.declarations import Option, VariableOption, construct_handler
from rpc_backends_agents.engine.kinds import YES_OR_NO, Kind, seconds
from rpc_backends_agents.engine.option_checks import OptionChecks
from rpc_backends_agents.engine.options import CertifiedOptions
from rpc_backends_core.spi import SettingError

#: The name of the backend.
BACKEND = "UCX"


def _words(checks: OptionChecks, name: str, value: Any, meaning: str) -> tuple[str, ...]:
    """Check a list of words, or a str with commas between them."""
    if not isinstance(value, str) and not isinstance(value, Iterable):
        raise checks.wrong_type(name, value, f"a list of str: {meaning}")
    words = value.split(",") if isinstance(value, str) else list(value)
    checked = tuple(checks.text(name, word, meaning) for word in words)
    for word in checked:
        if "," in word or any(letter.isspace() for letter in word):
            raise ValueError(f"{name} contains {word!r}, which is not one name.")
    if not checked:
        raise ValueError(f"{name}={value!r} is empty; {BACKEND} needs {meaning}.")
    return checked


def _transports(checks: OptionChecks, name: str, value: Any) -> tuple[str, ...]:
    words = _words(checks, name, value, "names of UCX transports")
    for word in words:
        why = names.wrong_transport(word)
        if why is not None:
            raise ValueError(f"{name}={value!r}: {why}")
    return words


def _read_words(_variable: str, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _read_transports(variable: str, text: str) -> tuple[str, ...]:
    words = _read_words(variable, text)
    for word in words:
        why = names.wrong_transport(word)
        if why is not None:
            raise SettingError(f"{variable}={text!r}: {why}")
    return words


def _settings(checks: OptionChecks, name: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise checks.wrong_type(name, value, 'a dict such as {"UCX_RNDV_THRESH": "64k"}')
    settings = {}
    for key, text in value.items():
        setting = checks.text(f"a name in {name}", key, "the name of a UCX setting")
        why = names.wrong_setting(setting)
        if why is not None:
            raise ValueError(f"{name} has {key!r}: {why}")
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise checks.wrong_type(f"{name}[{key!r}]", text, "a str or a number")
        settings[setting] = str(text)
    return settings


def _device_memory(checks: OptionChecks, name: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise checks.wrong_type(name, value, 'a dict such as {"cuda": "cuda"}')
    memories = {}
    for key, memory in value.items():
        device = checks.text(f"a name in {name}", key, "a type of device, such as cuda")
        if memory not in names.DEVICE_TRANSPORTS:
            raise ValueError(
                f"{name}[{device!r}]={memory!r} is none of UCX's names of memory: "
                f"{', '.join(names.DEVICE_TRANSPORTS)}."
            )
        memories[device] = memory
    return memories


class UCXRpcBackendOptions(CertifiedOptions):
    """The options of UCX.

    If an option is None when RPC starts, its environment variable counts, and then its default. As with
    torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and the options cannot
    be pickled. ``secret`` shows where the secret comes from, never its text.
    """

    BACKEND = BACKEND

    trusted_network: VariableOption[bool] = VariableOption(
        YES_OR_NO,
        default=False,
        meaning="whether only the workers can reach the network. Unless it is True, workers use only "
        "shared memory, within one host, because UCX does not encrypt; True adds TCP, and allows other "
        "transports",
    )
    transports: VariableOption[tuple[str, ...] | None, str | Iterable[str]] = VariableOption(
        Kind(_transports, "names with commas between them", _read_transports),
        default=None,
        default_text=f"``{','.join(names.PRIVATE)}``",
        meaning="the UCX transports to use, as a list or separated by commas, for example "
        '``["tcp"]``. The default is shared memory; in a trusted network it is '
        f"``{','.join(names.TRUSTED)}``. RDMA is used only if it is named: "
        '``["self", "posix", "cma", "rc", "tcp"]``. Without the option and its variable, ``UCX_TLS`` is '
        "read",
        also=("UCX_TLS",),
    )
    net_devices: VariableOption[tuple[str, ...] | None, str | Iterable[str]] = VariableOption(
        Kind(
            lambda checks, name, value: _words(checks, name, value, "names of devices"),
            "names with commas between them",
            _read_words,
        ),
        default=None,
        default_text="all",
        meaning='the network devices to use, for example ``["eth0"]`` or ``["mlx5_0:1"]``. Without the '
        "option and its variable, ``UCX_NET_DEVICES`` is read",
        also=("UCX_NET_DEVICES",),
    )
    poll_time: VariableOption[float] = VariableOption(
        seconds(0, 10),
        # On an idle machine a small call is answered within this time, so the worker still polls when the
        # next call arrives. Other values were not compared.
        default=1e-4,
        meaning="how many seconds a worker polls after a message before it sleeps. With a longer time, "
        "calls after a pause are answered sooner, and the worker uses a core meanwhile",
        native=True,
    )
    keepalive: Option[float] = Option(
        seconds(0.1, 3600),
        default=1.0,
        meaning="seconds between two checks whether a worker on another host is still reachable",
    )
    settings: Option[dict[str, str], Mapping[str, str] | None] = Option(
        Kind(_settings, "settings by name"),
        default=None,
        meaning='other settings of UCX by name, for example ``{"UCX_RNDV_THRESH": "64k"}``. UCX also '
        "reads "
        "its own variables",
    )
    device_memory: Option[dict[str, str], Mapping[str, str] | None] = Option(
        Kind(_device_memory, "names of memory by type of device"),
        default=None,
        meaning="the types of devices whose memory UCX moves itself, by torch's name, each with UCX's "
        "name "
        'of that memory: ``{"cuda": "cuda"}``, or ``{"xpu": "ze-device"}``. All workers of a group must '
        "name the same types. By default the agent copies tensors on devices through host memory",
        native=True,
    )


construct_rpc_backend_options = construct_handler(UCXRpcBackendOptions)
