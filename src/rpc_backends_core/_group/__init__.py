"""How workers find each other on a store and form a group.

Torch numbers the groups of a store with a counter in each process, so processes with different
histories never meet. Here the counter is in the store. A static group uses the store's open
*generation* and closes it when its last member has arrived; a dynamic group keeps its generation
open. Backends receive a store of their own and a :class:`Group`, with which members exchange data.
"""

from __future__ import annotations

from rpc_backends_core._group.answers import ReplacedGroupError, get_all
from rpc_backends_core._group.formation import join_group
from rpc_backends_core._group.group import Group, Member
from rpc_backends_core._group.waiting import STORE_TIMEOUT, StoreAccess, logger, wait_for

__all__ = [
    "STORE_TIMEOUT",
    "Group",
    "Member",
    "ReplacedGroupError",
    "StoreAccess",
    "get_all",
    "join_group",
    "logger",
    "wait_for",
]
