"""A guard for RPC workers: only what a policy lists is unpickled and run."""

from __future__ import annotations

from rpc_backends_guard.policy import Policy, PolicyError, Rule, read

__all__ = ["Policy", "PolicyError", "Rule", "read", "use"]


def use(policy: Policy | None) -> None:
    """Guard the workers that this process starts from now on.

    If ``RPC_BACKENDS_GUARD`` is set too, ``init_rpc`` fails: nothing says which of the policies is meant.

    :param policy: None to guard no longer.
    :raises TypeError: it is neither a policy nor None.
    """
    from rpc_backends_guard import hooks

    if policy is not None and not isinstance(policy, Policy):
        raise TypeError(
            f"use() takes a Policy or None, not {policy!r}. Read a file with use(read('policy.toml'))."
        )
    hooks.in_use = policy
