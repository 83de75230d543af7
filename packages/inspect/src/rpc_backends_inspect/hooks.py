"""The hook that installs the recorder in front of each agent."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from rpc_backends_core.spi import RefusedError, hookimpl

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 0)
_VARIABLE = "RPC_BACKENDS_RECORDER"
#: The number of ended calls that a worker keeps if the variable is "on".
_CALLS = 10_000


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None, resolved: Any) -> Generator[None, Any, Any]:
    """Record the calls of the agent that is being installed."""
    agent = yield
    calls = _calls(os.environ.get(_VARIABLE, ""))
    if calls == 0:
        return agent
    from rpc_backends_inspect.recording import record

    return record(agent, backend or "", _group(getattr(resolved, "options", None)), calls)


def _group(options: Any) -> str:
    """Return the address where the workers of the group meet."""
    url = str(getattr(options, "init_method", ""))
    if url not in {"", "env://"}:
        return url
    return "env://" + ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))


def _calls(value: str) -> int:
    if value.lower() in {"", "off", "0"}:
        return 0
    if value.lower() == "on":
        return _CALLS
    if not value.isdecimal() or int(value) > 10_000_000:
        raise RefusedError(
            f"{_VARIABLE} is {value!r}; it must be 'off', 'on', or the number of ended calls to keep "
            "(at most 10000000)"
        )
    return int(value)
