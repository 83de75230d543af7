"""The token of a group: a text that all workers of the group know, and that no other group has."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from rpc_backends_core.spi import JOIN_TIMEOUT

if TYPE_CHECKING:
    from rpc_backends_core.spi import Group


def group_token(group: Group, key: str) -> str:
    """Return the token of ``group``.

    :param key: the key in a dynamic group's store under which the first member writes the group's nonce.
    :raises StoreError: the store is lost, or does not answer (dynamic groups).
    """
    if group.token is not None:
        return group.token
    # Members join one after the other, so all use the nonce that the first one wrote.
    fresh = secrets.token_hex(16)
    nonce = group.access.ask(
        lambda store: bytes(store.compare_set(key, "", fresh)),
        min(group.timeout, JOIN_TIMEOUT),
    )
    return hashlib.sha256(nonce).hexdigest()
