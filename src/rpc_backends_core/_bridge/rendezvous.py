"""Torch's rendezvous, with a time limit on each wait."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch.distributed as dist

from rpc_backends_core import _settings
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._errors import GroupTimeoutError
from rpc_backends_core._time_limit import HOST_MAY_HANG, JOIN_TIMEOUT, LateError, within

_FORMS = (
    "Use env:// with the variables MASTER_ADDR, MASTER_PORT and RANK, tcp://HOST:PORT, file:///PATH, or "
    "a scheme that the program has registered."
)
#: Seconds between two attempts to connect to the host.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
#: The shortest time limit of one attempt to connect, in seconds.
_SHORTEST_ATTEMPT = 1.0
#: Seconds that torch gets beyond its own time limit: its own error, if it raises one, is the better one.
_MORE_THAN_TORCHS = 3.0


class Meeting(NamedTuple):
    """The result of a rendezvous.

    :ivar store: the raw store that all workers share.
    :ivar iterator: torch's rendezvous iterator, which keeps the store alive.
    """

    store: Any
    rank: int
    iterator: Any


def meet(
    init_method: str, name: str, rank: int, world_size: int | None, limit: float | None
) -> Meeting:
    """Run the rendezvous with the other workers.

    :param init_method: the URL of the rendezvous.
    :param name: this worker's name, for error messages.
    :param limit: seconds to wait for the others; None for torch's default.
    :raises ValueError, RuntimeError: torch cannot use the URL.
    :raises GroupTimeoutError: nothing listened at that address within ``limit``, or the process that
        listens there did not answer for a minute (or for ``limit``, if that is less).
    """
    with _naming_arguments(init_method, name):
        return _meet(init_method, name, rank, world_size, limit)


@contextmanager
def _naming_arguments(init_method: str, name: str) -> Iterator[None]:
    """Name the argument in an error of torch's rendezvous about the URL, or about the environment."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, ValueError) and not text.startswith("No rendezvous handler"):
            raise
        remedy = "Pass rank to init_rpc." if "rank parameter missing" in text else _FORMS
        raise type(error)(
            f"RPC worker {name!r} cannot use init_method {init_method!r}: {text}. {remedy}"
        ) from None


def _meet(
    init_method: str, name: str, rank: int, world_size: int | None, limit: float | None
) -> Meeting:
    scheme = init_method.partition(":")[0]
    if rank == -1 and scheme == "env" and "RANK" in os.environ:
        rank = _rank_of_environment()
    if limit is None or scheme not in ("env", "tcp"):
        # torch's own schemes take a timeout; a scheme that the program registered may not
        iterator = torch_internals.rendezvous(init_method, rank, world_size)
        store, joined_rank, _ = next(iterator)
    else:
        # No world size is passed: a TCP store that gets one waits for that many clients and cannot say
        # which are missing. `_group` can say it.
        url = init_method if rank == -1 else _tcp(init_method)
        store, joined_rank, iterator = _connect(url, name, rank, limit)
    return Meeting(store, rank if world_size is None else joined_rank, iterator)


def _rank_of_environment() -> int:
    text = os.environ["RANK"]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the variable RANK is {text!r}, which is not a number") from None


def _connect(url: str, name: str, rank: int, limit: float) -> tuple[Any, int, Any]:
    """Return what torch's rendezvous gives, and the rendezvous itself.

    If a host accepts the connection and does not answer, torch's client ignores its timeout and waits for
    ever. So torch's rendezvous runs on a thread of its own.
    """
    end = time.monotonic() + limit
    while True:
        if rank > 0:
            _wait_for_host(url, end - time.monotonic())
        seconds = min(max(end - time.monotonic(), _SHORTEST_ATTEMPT), JOIN_TIMEOUT)
        try:
            return within(seconds + _MORE_THAN_TORCHS, partial(_open, url, rank, seconds))
        except LateError:
            raise GroupTimeoutError(
                f"RPC worker {name!r} (rank {rank}) waited {min(limit, JOIN_TIMEOUT):g} s for the "
                f"group's store at {url}, which accepts connections and does not answer. {HOST_MAY_HANG}"
            ) from None
        except dist.DistError as error:
            if "timed out" not in str(error).lower():
                raise
            if time.monotonic() < end:
                continue
            raise GroupTimeoutError(
                f"RPC worker {name!r} (rank {rank}) waited {limit:g} s for the others at "
                f"{url}: {str(error).partition(chr(10))[0]} Start every worker with the same "
                f"world_size and address; {_settings.JOIN_TIMEOUT}=SECONDS sets how long they wait."
            ) from error


def _open(url: str, rank: int, seconds: float) -> tuple[Any, int, Any]:
    iterator = torch_internals.rendezvous(url, rank, None, timeout=timedelta(seconds=seconds))
    store, joined_rank, _ = next(iterator)
    return store, joined_rank, iterator


def _tcp(init_method: str) -> str:
    """Return the ``tcp://`` URL equivalent to an ``env://`` one; it needs no world size.

    If the environment has no address, the URL is returned as it is, and torch reports the error.
    """
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not init_method.startswith("env:") or not host or not port or not port.isdigit():
        return init_method
    query = init_method.partition("?")[2]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port}{'?' if query else ''}{query}"


def _wait_for_host(url: str, limit: float) -> None:
    """Wait until something listens at a ``tcp://`` address, for at most ``limit`` seconds.

    Torch's own client sleeps for up to a second if its first attempt to connect fails.
    """
    address = urlsplit(url)
    if address.scheme != "tcp" or not address.hostname or not address.port:
        return
    end = time.monotonic() + limit
    pause = _SHORTEST_PAUSE
    while time.monotonic() < end:
        try:
            socket.create_connection((address.hostname, address.port), timeout=1).close()
        except (ConnectionRefusedError, TimeoutError):
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        except OSError:
            return  # for example a name that does not resolve: torch's client reports it
        else:
            return
