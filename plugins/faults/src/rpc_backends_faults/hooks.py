"""What the core calls when an agent is about to be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

from rpc_backends_core.spi import RefusedError, hookimpl

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 0)
#: What the names of all variables of this package begin with.
_VARIABLES = "RPC_BACKENDS_FAULTS"


@hookimpl(wrapper=True)
def rpc_backends_init_backend(kwargs: dict[str, Any]) -> Generator[None, Any, Any]:
    """Keep the rules that a backend's options carry, for the agent that is made of them."""
    carried = getattr(kwargs.get("rpc_backend_options"), "fault_rules", None)
    if carried is None:
        return (yield)
    from rpc_backends_faults import live, wanted

    try:
        rules = live.rule_set(carried)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    with wanted.carried_by(rules):
        return (yield)


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None) -> Generator[None, Any, Any]:
    """Put the fault-injecting agent before the one that is about to be installed, if anybody wants it."""
    agent = yield
    if _nobody_can_want():
        return agent
    from rpc_backends_faults import wanted

    try:
        want = wanted.now()
        if want is None:
            return agent
        from rpc_backends_faults.start import wrap

        return wrap(agent, backend, want)
    except ValueError as error:  # rules or variables mean nothing: whoever wrote them is to hear it
        raise RefusedError(str(error)) from error


def _nobody_can_want() -> bool:
    """Tell whether no variable is set and nobody has asked for rules in this process.

    Where this package is only installed, a start of RPC then does not import the rest of it.
    """
    if any(name.startswith(_VARIABLES) for name in os.environ):
        return False
    return f"{__package__}.wanted" not in sys.modules  # what takes a program's rules
