"""The options of UCX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torch.distributed.rpc.constants import (
    DEFAULT_INIT_METHOD,
    DEFAULT_NUM_WORKER_THREADS,
    DEFAULT_RPC_TIMEOUT_SEC,
)

from rpc_backend_ucx import names
from rpc_backend_ucx.environment import BACKEND
from rpc_backends_agents.common.device_options import (
    DeviceOptions,
    check_device_maps,
    check_devices,
)
from rpc_backends_agents.common.option_checks import OptionChecks
from rpc_backends_agents.common.secret import Secret

#: Bytes of the longest message accepted from a peer: more than programs send, less than a host's memory.
MAX_MESSAGE_BYTES = 16 << 30
#: If this many bytes of calls to one peer are unanswered, further calls to that peer wait.
MAX_UNANSWERED_BYTES = 1 << 30
#: Seconds between two checks whether a peer on another host is still reachable.
KEEPALIVE = 1.0
_SHORTEST_KEEPALIVE = 0.1
_LONGEST_KEEPALIVE = 3600.0
_LONGEST_POLL_TIME = 10.0

_checks = OptionChecks(BACKEND)


class UCXRpcBackendOptions(DeviceOptions):
    """The options of UCX; see :func:`construct_rpc_backend_options`.

    If an option is None when RPC starts, its environment variable counts, and then its default. As with
    torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and the options cannot
    be pickled. ``secret`` shows where the secret comes from, never its text.
    """

    BACKEND = BACKEND

    num_worker_threads: int
    secret: Secret | None
    secret_file: str | None
    trusted_network: bool | None
    transports: tuple[str, ...] | None
    net_devices: tuple[str, ...] | None
    poll_time: float | None
    keepalive: float
    settings: dict[str, str]
    device_memory: dict[str, str]
    max_message_bytes: int
    max_unanswered_bytes: int

    def __init__(
        self,
        *,
        num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC,
        init_method: str = DEFAULT_INIT_METHOD,
        secret: str | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        trusted_network: bool | None = None,
        transports: str | Iterable[str] | None = None,
        net_devices: str | Iterable[str] | None = None,
        poll_time: float | None = None,
        keepalive: float = KEEPALIVE,
        settings: Mapping[str, str] | None = None,
        device_memory: Mapping[str, str] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_unanswered_bytes: int = MAX_UNANSWERED_BYTES,
        device_maps: Mapping[str, Mapping[Any, Any]] | None = None,
        devices: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(
            rpc_timeout=_checks.timeout("rpc_timeout", rpc_timeout),
            init_method=_checks.text("init_method", init_method, "the URL of the rendezvous"),
        )
        self.__dict__.update(
            {
                "num_worker_threads": _checks.integer("num_worker_threads", num_worker_threads),
                "secret": _checks.secret(secret),
                "secret_file": _checks.path("secret_file", secret_file),
                "trusted_network": _checks.boolean("trusted_network", trusted_network),
                "transports": _transports(transports),
                "net_devices": _words("net_devices", net_devices, "names of devices"),
                "poll_time": None if poll_time is None else check_poll_time(poll_time),
                "keepalive": _checks.seconds(
                    "keepalive", keepalive, least=_SHORTEST_KEEPALIVE, most=_LONGEST_KEEPALIVE
                ),
                "settings": _settings(settings),
                "device_memory": _device_memory(device_memory),
                "max_message_bytes": _checks.integer("max_message_bytes", max_message_bytes),
                "max_unanswered_bytes": _checks.integer(
                    "max_unanswered_bytes", max_unanswered_bytes
                ),
                "device_maps": check_device_maps(_checks, device_maps),
                "devices": check_devices(_checks, devices),
            }
        )


def construct_rpc_backend_options(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
    secret: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    trusted_network: bool | None = None,
    transports: str | Iterable[str] | None = None,
    net_devices: str | Iterable[str] | None = None,
    poll_time: float | None = None,
    keepalive: float = KEEPALIVE,
    settings: Mapping[str, str] | None = None,
    device_memory: Mapping[str, str] | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_unanswered_bytes: int = MAX_UNANSWERED_BYTES,
    device_maps: Mapping[str, Mapping[Any, Any]] | None = None,
    devices: Iterable[Any] | None = None,
) -> UCXRpcBackendOptions:
    """Construct the options of one worker, without opening or starting anything. Torch calls this.

    :param rpc_timeout: seconds that a call may take; 0 means no limit.
    :param init_method: the URL of the rendezvous.
    :param num_worker_threads: threads that execute requests.
    :param secret: the secret that the workers share, from ``rpc-backends secret``.
    :param secret_file: the file that holds the secret; only its owner may have access to it.
    :param trusted_network: whether only the workers can reach the network. Unless it is True, workers use
        only shared memory, within one host, because UCX does not encrypt.
    :param transports: the UCX transports to use, as a list or separated by commas, for example
        ``["tcp"]``. The default is shared memory; with ``trusted_network``, also TCP.
    :param net_devices: the network devices to use, for example ``["eth0"]``. The default is all.
    :param poll_time: how many seconds a worker polls after a message before it sleeps. A worker that
        polls answers sooner, and uses a core.
    :param keepalive: seconds between two checks whether a worker on another host is still reachable.
    :param settings: other settings of UCX by name, for example ``{"UCX_RNDV_THRESH": "64k"}``.
    :param device_memory: the types of devices whose memory UCX moves itself, by torch's name, each with
        UCX's name of that memory: ``{"cuda": "cuda"}``, or ``{"xpu": "ze-device"}``. All workers of a
        group must name the same types. By default the agent copies tensors on devices through host
        memory. Not yet tested on a GPU.
    :param max_message_bytes: the size of the longest message accepted from another worker, in bytes,
        tensors included.
    :param max_unanswered_bytes: bytes of unanswered calls to one worker. Beyond that, further calls to it
        wait.
    :param device_maps: by callee, a map from this worker's devices to the callee's devices, for example
        ``{"worker1": {"cuda:0": "cuda:1"}}``. Answers use the inverted map.
    :param devices: the accelerators of this worker that RPC may use. The default is those in the device
        maps of this worker and of its callers.
    :raises TypeError: an option has the wrong type.
    :raises ValueError: an option has an invalid value.
    :raises RuntimeError: torch knows no such device.
    """
    return UCXRpcBackendOptions(
        num_worker_threads=num_worker_threads,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        secret=secret,
        secret_file=secret_file,
        trusted_network=trusted_network,
        transports=transports,
        net_devices=net_devices,
        poll_time=poll_time,
        keepalive=keepalive,
        settings=settings,
        device_memory=device_memory,
        max_message_bytes=max_message_bytes,
        max_unanswered_bytes=max_unanswered_bytes,
        device_maps=device_maps,
        devices=devices,
    )


def check_poll_time(value: Any) -> float:
    """Check the option ``poll_time``.

    :raises TypeError, ValueError: it is not a number of seconds in the permitted range.
    """
    return _checks.seconds("poll_time", value, least=0, most=_LONGEST_POLL_TIME)


def _words(name: str, value: Any, meaning: str) -> tuple[str, ...] | None:
    """Check a list of words, or a str with commas between them."""
    if value is None:
        return None
    if not isinstance(value, str) and not isinstance(value, Iterable):
        raise _checks.wrong_type(name, value, f"a list of str: {meaning}")
    words = value.split(",") if isinstance(value, str) else list(value)
    checked = tuple(_checks.text(name, word, meaning) for word in words)
    for word in checked:
        if "," in word or any(letter.isspace() for letter in word):
            raise ValueError(f"{name} contains {word!r}, which is not one name.")
    if not checked:
        raise ValueError(f"{name}={value!r} is empty; {BACKEND} needs {meaning}.")
    return checked


def _transports(value: Any) -> tuple[str, ...] | None:
    words = _words("transports", value, "names of UCX transports")
    for word in words or ():
        why = names.wrong_transport(word)
        if why is not None:
            raise ValueError(f"transports={value!r}: {why}")
    return words


def _settings(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _checks.wrong_type("settings", value, 'a dict such as {"UCX_RNDV_THRESH": "64k"}')
    found = {}
    for name, text in value.items():
        checked = _checks.text("a name in settings", name, "the name of a UCX setting")
        why = names.wrong_setting(checked)
        if why is not None:
            raise ValueError(f"settings has {name!r}: {why}")
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise _checks.wrong_type(f"settings[{name!r}]", text, "a str or a number")
        found[checked] = str(text)
    return found


def _device_memory(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _checks.wrong_type("device_memory", value, 'a dict such as {"cuda": "cuda"}')
    found = {}
    for device, memory in value.items():
        checked = _checks.text("a name in device_memory", device, "a type of device, such as cuda")
        if memory not in names.DEVICE_TRANSPORTS:
            raise ValueError(
                f"device_memory[{checked!r}]={memory!r} is none of UCX's names of memory: "
                f"{', '.join(names.DEVICE_TRANSPORTS)}."
            )
        found[checked] = memory
    return found
