"""Backends that break one of the smaller chapters."""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any

from rpc_backend_tensorpipe.handlers import BACKEND
from rpc_backends_core import Backend, Capability
from rpc_broken_backends import Broken
from rpc_broken_backends.seams import (
    SENDERS,
    Send,
    around_sending,
    construct,
    once,
    tensorpipe,
)

_kept: list[Any] = []


def never_release_rrefs() -> None:
    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        rref = send(*args, **kwargs)
        _kept.append(rref)
        return rref

    around_sending(send, only="_invoke_remote")


def lose_the_autograd_context() -> None:
    def send(_name: str, send: Send, args: Any, kwargs: Any) -> Any:
        # The context belongs to the thread that has entered it.
        result: list[Any] = []
        thread = threading.Thread(target=lambda: result.append(send(*args, **kwargs)))
        thread.start()
        thread.join()
        return result[0]

    around_sending(send)


def ignore_timeouts() -> None:
    def send(name: str, send: Send, args: Any, kwargs: Any) -> Any:
        place = SENDERS[name]
        never = 0.0
        return send(*args[:place], never, *args[place + 1 :], **kwargs)

    around_sending(send)


def time_out_late() -> None:
    def send(name: str, send: Send, args: Any, kwargs: Any) -> Any:
        place = SENDERS[name]
        seconds = args[place]
        later = seconds + 6 if seconds > 0 else seconds
        return send(*args[:place], later, *args[place + 1 :], **kwargs)

    around_sending(send)


def swallow_unknown_options(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    known = inspect.signature(BACKEND.construct_rpc_backend_options_handler).parameters
    mine = {key: value for key, value in options.items() if key in known}
    return construct(rpc_timeout, init_method, **mine)


def drop_device_maps(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    options.pop("device_maps", None)
    return construct(rpc_timeout, init_method, **options)


def _metrics_raise() -> Backend:
    def init_backend(
        store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any
    ) -> Any:
        agent = BACKEND.init_backend_handler(store, name, rank, world_size, rpc_backend_options)

        measure = agent.get_metrics

        def get_metrics() -> dict[str, str]:
            # The backend itself reads these metrics when it leaves: it waits for active calls.
            if sys._getframe(1).f_globals["__name__"].startswith("rpc_backend_"):
                metrics: dict[str, str] = measure()
                return metrics
            raise NotImplementedError("this backend counts nothing")

        agent.get_metrics = get_metrics
        return agent

    return tensorpipe(lambda: None, init_backend_handler=init_backend)


BROKEN = {
    "NEVER_RELEASES_RREFS": Broken(tensorpipe(once(never_release_rrefs)), "rrefs", ("rrefs.", "")),
    "LOSES_THE_AUTOGRAD_CONTEXT": Broken(
        tensorpipe(once(lose_the_autograd_context)), "autograd", ("autograd.", "")
    ),
    "IGNORES_TIMEOUTS": Broken(tensorpipe(once(ignore_timeouts)), "time", ("time.", "")),
    "TIMES_OUT_LATE": Broken(tensorpipe(once(time_out_late)), "time", ("time.", "")),
    "SWALLOWS_UNKNOWN_OPTIONS": Broken(
        tensorpipe(lambda: None, construct_rpc_backend_options_handler=swallow_unknown_options),
        "options",
        ("options.", "no error"),
    ),
    "METRICS_RAISE": Broken(_metrics_raise(), "metrics", ("metrics.", "counts nothing")),
    "DROPS_DEVICE_MAPS": Broken(
        tensorpipe(lambda: None, construct_rpc_backend_options_handler=drop_device_maps),
        "devices",
        ("devices.", "no error"),
    ),
    "CLAIMS_ENCRYPTION": Broken(
        tensorpipe(
            lambda: None,
            capabilities=BACKEND.capabilities | {Capability.ENCRYPTION},
        ),
        "security",
        ("security.", ""),
    ),
}
