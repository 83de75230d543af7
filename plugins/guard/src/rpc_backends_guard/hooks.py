"""The hook that puts the guard in front of a worker. It imports nothing else unless a policy is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from rpc_backends_core.spi import RefusedError, hookimpl

if TYPE_CHECKING:
    from rpc_backends_guard.policy import Policy

#: The version of rpc_backends_core.spi that this package was written for.
spi_version = (1, 1)
POLICY = "RPC_BACKENDS_GUARD"
LEARN = "RPC_BACKENDS_GUARD_LEARN"
VARIABLES = {
    POLICY: "the policy file of this worker",
    LEARN: "the folder to which `rpc-backends guard learn` makes workers write what they see",
}
#: The policy that the program has passed to `use`.
in_use: Policy | None = None


@hookimpl(wrapper=True)
def rpc_backends_init_backend() -> Generator[None, Any, Any]:
    """Tell the backend which identities may have which names, before workers prove them."""
    file = os.environ.get(POLICY, "")
    if file or in_use is not None:
        from rpc_backends_guard import identities, policy

        try:
            rules = policy.read(file) if file else in_use
        except policy.PolicyError as error:
            raise RefusedError(str(error)) from None
        assert rules is not None
        identities.use(rules, file)
    elif f"{__package__}.identities" in sys.modules:  # an earlier group had a policy
        from rpc_backends_guard import identities

        identities.forget()
    return (yield)


@hookimpl(wrapper=True)
def rpc_backends_agent(backend: str | None) -> Generator[None, Any, Any]:
    """Guard the agent that is being installed."""
    agent = yield
    file = os.environ.get(POLICY, "")
    learn = os.environ.get(LEARN, "")
    if not file and not learn and in_use is None:
        if (
            f"{__package__}.guarding" in sys.modules
        ):  # an earlier group of this process had a policy
            from rpc_backends_guard import guarding

            guarding.stop()
        return agent
    from rpc_backends_guard import guarding, policy

    if file and learn:
        raise RefusedError(
            f"both {POLICY} and {LEARN} are set; a policy is learned without one. Unset one of them."
        )
    try:
        if learn:
            return guarding.learn(agent, learn)
        rules = policy.read(file) if file else in_use
        assert rules is not None
        return guarding.start(agent, backend or "", rules)
    except policy.PolicyError as error:
        raise RefusedError(str(error)) from None  # the text says all, and once
