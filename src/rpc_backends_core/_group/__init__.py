"""Workers that find each other on a store and become a group.

Torch numbers the groups of a store by a counter in each process, so processes with different histories
never meet. Here the store itself counts: a static group takes the store's open *generation* and closes
it when its last member has arrived; a dynamic group keeps its generation open. Backends get a store that
is theirs alone, and :class:`Group` to exchange what their members must know of each other.
"""

from __future__ import annotations

from rpc_backends_core._group.formation import join_group
from rpc_backends_core._group.group import Group, Member, get_all
from rpc_backends_core._group.waiting import STORE_PATIENCE, StoreAccess, wait_for

__all__ = [
    "STORE_PATIENCE",
    "Group",
    "Member",
    "StoreAccess",
    "get_all",
    "join_group",
    "wait_for",
]
