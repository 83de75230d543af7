"""A guard for RPC workers: only what a policy lists is unpickled and run."""

from __future__ import annotations

from rpc_backends_guard.policy import Policy, PolicyError, Rule, read

__all__ = ["Policy", "PolicyError", "Rule", "read", "use"]


def use(policy: Policy | None) -> None:
    """Guard the workers that this process starts from now on.

    If ``RPC_BACKENDS_GUARD`` is set too, ``init_rpc`` fails: nothing says which of the policies is meant.

    :param policy: None to guard no longer.
    """
    from rpc_backends_guard import hooks

    hooks.in_use = policy
