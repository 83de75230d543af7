"""What the core calls when an agent is about to be installed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from rpc_backends_core import RefusedError, hookimpl


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
    from rpc_backends_faults import wanted

    try:
        want = wanted.now()
        if want is None:
            return agent
        from rpc_backends_faults.start import wrap

        return wrap(agent, backend, want)
    except (
        ValueError
    ) as error:  # rules or variables that mean nothing: whoever wrote them is to hear it
        raise RefusedError(str(error)) from error
