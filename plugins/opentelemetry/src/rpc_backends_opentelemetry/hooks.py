"""The hook that reports the calls of each agent."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from rpc_backends_core.spi import RefusedError, hookimpl

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 0)
_VARIABLE = "RPC_BACKENDS_OTEL"
#: The variable of this package, with its meaning.
VARIABLES = {_VARIABLE: "whether the calls of this worker are reported as traces and metrics"}


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None) -> Generator[None, Any, Any]:
    """Report the calls of the agent that is being installed."""
    agent = yield
    if not _is_on(os.environ.get(_VARIABLE, "")):
        return agent
    from rpc_backends_opentelemetry.reporting import report

    return report(agent, backend or "")


def _is_on(value: str) -> bool:
    if value.lower() in {"", "0", "false", "no", "off"}:
        return False
    if value.lower() in {"1", "true", "yes", "on"}:
        return True
    raise RefusedError(f"{_VARIABLE} is {value!r}; it must be '1' (on) or '0' (off)")
