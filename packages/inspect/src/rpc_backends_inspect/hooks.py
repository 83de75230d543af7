"""The hook that installs the recorder in front of each agent."""

from __future__ import annotations

import os
from collections.abc import Generator
from logging import getLogger
from typing import Any

from rpc_backends_core.spi import (
    RefusedError,
    SettingError,
    StoreError,
    current_session,
    hookimpl,
    parse_boolean,
)

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 1)
_VARIABLE = "RPC_BACKENDS_RECORDER"
_DUMPS = "RPC_BACKENDS_DUMP"
_AT_END = "RPC_BACKENDS_DUMP_AT_END"
_LIMIT = "RPC_BACKENDS_DUMP_SHUTDOWN_AFTER"
#: The variables of this package, with their meaning.
VARIABLES = {
    _VARIABLE: "off, on, or the number of ended calls that each worker keeps",
    _DUMPS: "the folder where a worker writes its state when a call fails or shutdown takes long",
    _AT_END: "whether a worker writes its state when it stops",
    _LIMIT: "seconds in shutdown after which a worker writes its state",
}
#: The number of ended calls that a worker keeps unless the variable sets another number.
_CALLS = 10_000


@hookimpl(wrapper=True)
def rpc_backends_start(
    backend: str, resolved: Any, name: str, rank: int, world_size: int | None
) -> Generator[None, Any, Any]:
    """Show a worker that waits in ``init_rpc``, or whose ``init_rpc`` has failed."""
    if _calls(os.environ.get(_VARIABLE, "")) == 0:
        return (yield)
    from rpc_backends_inspect.recording import Start

    start = Start(name, rank, world_size, backend, _group(resolved.options))
    Start.current = start
    try:
        result = yield
    except BaseException as error:
        start.fail(error)
        raise
    finally:
        Start.current = None
    start.end()
    return result


@hookimpl(wrapper=True)
def rpc_backends_init_backend() -> Generator[None, Any, Any]:
    """Show of which group the worker that waits in ``init_rpc`` is a member."""
    if _calls(os.environ.get(_VARIABLE, "")) != 0:
        from rpc_backends_inspect.recording import Start

        if Start.current is not None:
            Start.current.join_group(_group_id())
    return (yield)


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None, resolved: Any) -> Generator[None, Any, Any]:
    """Record the calls of the agent that is being installed."""
    agent = yield
    calls = _calls(os.environ.get(_VARIABLE, ""))
    if calls == 0:
        return agent
    from rpc_backends_inspect.dumps import Dumps
    from rpc_backends_inspect.recording import record

    return record(
        agent,
        backend or "",
        _group(getattr(resolved, "options", None)),
        _group_id(),
        calls,
        Dumps(
            folder=os.environ.get(_DUMPS, ""),
            shutdown_limit=_limit(os.environ.get(_LIMIT, "")),
            at_end=_is_on(_AT_END, os.environ.get(_AT_END, "").strip()),
        ),
    )


def _group(options: Any) -> str:
    """Return the address where the workers of the group meet."""
    url = str(getattr(options, "init_method", ""))
    if url not in {"", "env://"}:
        return url
    return "env://" + ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))


def _group_id() -> str:
    """Return the id of the group that this process is in; empty if there is none."""
    session = current_session()
    try:
        return session.group_id() if session is not None else ""
    except StoreError as error:  # the start fails for the same reason, or does not need the store
        getLogger(__name__).warning(
            "rpc-backends inspect cannot tell this group from others: %s", error
        )
        return ""


def _limit(value: str) -> float:
    from rpc_backends_inspect.dumps import SHUTDOWN_LIMIT

    try:
        seconds = float(value or SHUTDOWN_LIMIT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
        raise RefusedError(
            f"{_LIMIT} is {value!r}; it must be a number of seconds above 0 and at most 1000000"
        )
    return seconds


def _is_on(variable: str, value: str) -> bool:
    try:
        return value != "" and parse_boolean(variable, value)
    except SettingError as error:
        raise RefusedError(str(error)) from None


def _calls(value: str) -> int:
    if value.lower() in {"off", "0"}:
        return 0
    if value.lower() in {"", "on"}:
        return _CALLS
    if not value.isdecimal() or int(value) > 10_000_000:
        raise RefusedError(
            f"{_VARIABLE} is {value!r}; it must be 'off', 'on', or the number of ended calls to keep "
            "(at most 10000000)"
        )
    return int(value)
