"""The hooks that the core calls when it starts a backend and installs its agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

from rpc_backends_core.spi import RefusedError, hookimpl

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 1)
#: The prefix of all environment variables of this package.
_VARIABLES = "RPC_BACKENDS_FAULTS"


@hookimpl(wrapper=True)
def rpc_backends_start() -> Generator[None, Any, Any]:
    """Stop fault injection in front of an agent that could not start."""
    try:
        return (yield)
    except BaseException:
        # A hook that refuses the agent after this package's drops it without a shutdown.
        if f"{__package__}.start" in sys.modules:
            from rpc_backends_faults import live

            live.close_engines()
        raise


@hookimpl(wrapper=True)
def rpc_backends_init_backend(kwargs: dict[str, Any]) -> Generator[None, Any, Any]:
    """Read fault rules from the backend's options, for the agent that this call makes."""
    carried = getattr(kwargs.get("rpc_backend_options"), "fault_rules", None)
    if carried is None:
        return (yield)
    from rpc_backends_faults import live, settings

    try:
        rules = live.rule_set(carried)
    except ValueError as error:
        raise RefusedError(str(error)) from None  # the text says all, and once
    with settings.carried_by(rules):
        return (yield)


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None) -> Generator[None, Any, Any]:
    """Put fault injection in front of the agent that is being installed, if it is enabled."""
    agent = yield
    if _nobody_can_want():
        return agent
    from rpc_backends_faults import settings

    try:
        want = settings.now()
        if want is None:
            return agent
        from rpc_backends_faults.start import wrap

        return wrap(agent, backend, want)
    except ValueError as error:  # rules or variables that are not valid: init_rpc fails
        raise RefusedError(str(error)) from None  # the text says all, and once


def _nobody_can_want() -> bool:
    """Return whether no variable is set and the program has not imported the rule functions.

    If so, ``init_rpc`` does not import the rest of this package, which may be installed but not used.
    """
    if any(name.startswith(_VARIABLES) for name in os.environ):
        return False
    return f"{__package__}.settings" not in sys.modules  # the module that holds a program's rules
