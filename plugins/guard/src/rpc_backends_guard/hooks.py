"""The hook that puts the guard in front of a worker. It imports nothing else unless a policy is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rpc_backends_core.spi import GroupTerm, RefusedError, current_session, hookimpl

if TYPE_CHECKING:
    from rpc_backends_guard.policy import Policy

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 1)
POLICY = "RPC_BACKENDS_GUARD"
LEARN = "RPC_BACKENDS_GUARD_LEARN"
#: What a program calls to set a policy.
USE = "rpc_backends_guard.use()"
VARIABLES = {
    POLICY: "the policy file of this worker",
    LEARN: "the folder to which `rpc-backends guard learn` makes workers write what they see",
}
#: The policy that the program has passed to `use`.
in_use: Policy | None = None


@hookimpl
def rpc_backends_terms() -> GroupTerm | None:
    """State the policy of this worker to its group, and demand one of all members if the policy does."""
    source = _source()
    if source is None or source == LEARN:
        return None
    rules = _policy(source)
    demand = "same" if rules.same_policy else "any" if rules.require_guard else ""
    return GroupTerm(
        "guard policy",
        f"{'enforced' if rules.enforces else 'only logged'}, sha256 {rules.digest}",
        demand,
        f"Install rpc-backends-guard there and set {POLICY} to the policy file"
        f"{', the same for all workers' if demand == 'same' else ''}, or remove "
        f"{'same_policy' if demand == 'same' else 'require_guard'} from the policy.",
    )


@hookimpl(wrapper=True)
def rpc_backends_init_backend() -> Generator[None, Any, Any]:
    """Tell the backend which identities may have which names, before workers prove them."""
    source = _source()
    if source is not None and source != LEARN:
        from rpc_backends_guard import identities

        identities.use(_policy(source))
    elif f"{__package__}.identities" in sys.modules:  # an earlier group had a policy
        from rpc_backends_guard import identities

        identities.forget()
    return (yield)


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None) -> Generator[None, Any, Any]:
    """Guard the agent that is being installed."""
    agent = yield
    source = _source()
    if source is None:
        if (
            f"{__package__}.guarding" in sys.modules
        ):  # an earlier group of this process had a policy
            from rpc_backends_guard import guarding

            guarding.stop()
        return agent
    from rpc_backends_guard import guarding, policy

    try:
        if source == LEARN:
            return guarding.learn(agent, os.environ[LEARN])
        rules = _policy(source)
        _check_group(rules, backend)
        return guarding.start(agent, backend or "", rules)
    except policy.PolicyError as error:
        raise RefusedError(str(error)) from None  # the text says all, and once


def _policy(source: str) -> Policy:
    """Return the policy of this worker.

    :raises RefusedError: it cannot be read.
    """
    from rpc_backends_guard import policy

    if source == USE:
        assert in_use is not None
        return in_use
    try:
        return policy.read(os.environ[POLICY])
    except policy.PolicyError as error:
        raise RefusedError(str(error)) from None


def _check_group(rules: Policy, backend: str | None) -> None:
    """Refuse a policy that requires a guard of all members where members do not tell each other."""
    session = current_session()
    if rules.require_guard and (session is None or session.group is None):
        raise RefusedError(
            f"{rules.source} has require_guard, which {backend or 'this start'} cannot honour: its "
            "workers do not tell each other what they have. Start an installed backend with init_rpc, "
            "without a store of the program's own, or remove require_guard."
        )


def _source() -> str | None:
    """Return where the policy of this worker comes from: a variable, or ``use``; None without a policy.

    :raises RefusedError: there are two sources, or a variable is empty.
    """
    sources = [name for name in (POLICY, LEARN) if name in os.environ]
    for name in sources:
        if not os.environ[name].strip():
            raise RefusedError(
                f"{name} is set, but empty. Set it to {VARIABLES[name]}, or unset it to start without a "
                "guard."
            )
    if in_use is not None:
        sources.append(USE)
    if len(sources) > 1:
        names = " and ".join(
            f"{USE} ({in_use.source})" if in_use and name == USE else f"{name}={os.environ[name]}"
            for name in sources
        )
        raise RefusedError(
            f"the guard has two sources of a policy, {names}, and nothing says which is meant. "
            "Remove one."
        )
    return sources[0] if sources else None
