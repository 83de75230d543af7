"""Gives workers with certificates the names of a policy, and what it revokes, also while they run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rpc_backends_agents.engine import files, identities
from rpc_backends_agents.engine.identities import Identities
from rpc_backends_guard.policy import Policy, PolicyError, read

logger = logging.getLogger("rpc_backends.guard")


def use(policy: Policy) -> None:
    """Make the identities of a policy those of this process; its file is read again when it changes."""
    identities.use(
        _constant(_of(policy, policy.revoked))
        if policy.file is None
        else _Rules(policy, str(policy.file))
    )


def forget() -> None:
    """Let names be those of certificates again."""
    identities.use(None)


class _Rules:
    """The rules of a policy file. Only `revoked` is taken from a file that changes."""

    def __init__(self, policy: Policy, file: str) -> None:
        self._policy = policy
        self._file = file
        # None: it is read at the first look, because it may have changed since the policy was read.
        self._state: tuple[int, ...] | None = None
        self._rules = _of(policy, policy.revoked)

    def __call__(self) -> Identities:
        """Return the rules that hold now."""
        state = files.state_if_there(self._file)
        if state != self._state:
            is_first = self._state is None
            self._state = state
            try:
                changed = read(self._file)
            except PolicyError as error:
                logger.warning(
                    "the changed guard policy has no effect on what is revoked: %s", error
                )
            else:
                self._rules = _of(self._policy, changed.revoked)
                if not is_first or changed.revoked != self._policy.revoked:
                    logger.warning(
                        "the guard policy %s has changed: what it revokes is in force (%s), other "
                        "changes are when the worker starts again",
                        self._file,
                        ", ".join(changed.revoked) or "nothing",
                    )
        return self._rules


def _of(policy: Policy, revoked: tuple[str, ...]) -> Identities:
    # Numbers may be written as OpenSSL does: capitals, pairs with colons, 0x or zeros in front.
    numbers = {entry.replace(":", "").lower().removeprefix("0x").lstrip("0") for entry in revoked}
    return Identities(names=dict(policy.identities), revoked=frozenset(revoked) | numbers - {""})


def _constant(rules: Identities) -> Callable[[], Identities]:
    return lambda: rules
