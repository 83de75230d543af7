"""The section on the guard in ``rpc-backends doctor``."""

from __future__ import annotations

import os

from rpc_backends_cli import Finding, Section
from rpc_backends_guard import hooks, words
from rpc_backends_guard.policy import Policy, PolicyError, read


def _of_group(policy: Policy) -> str:
    if policy.same_policy:
        return ", required of all members"
    return ", a guard is required of all members" if policy.require_guard else ""


def check() -> Section:
    """Check the policy that the environment names."""
    file = os.environ.get(hooks.POLICY)
    if file is None:
        text = "is not set: any member may run anything in a worker"
        return Section("guard", "Guard", [Finding("note", hooks.POLICY, text, {})])
    if not file.strip():
        text = "is set, but empty: init_rpc fails. Set it to a policy file, or unset it"
        return Section("guard", "Guard", [Finding("problem", hooks.POLICY, text, {})])
    try:
        policy = read(file)
    except PolicyError as error:
        return Section("guard", "Guard", [Finding("problem", "policy", str(error), {})])
    mode = "enforced" if policy.enforces else "only logged (mode = 'warn')"
    findings = [
        Finding(
            "ok" if policy.enforces else "warning",
            "policy",
            f"{file}, {policy.size}, {mode}, sha256 {policy.digest}{_of_group(policy)}",
            {"file": file, "sha256": policy.digest, "enforces": policy.enforces},
        )
    ]
    findings += [Finding("warning", "policy", line, {}) for line in words.warnings(policy)]
    return Section("guard", "Guard", findings)
