"""Stopping RPC: ``shutdown``, and what must happen when an agent ceases to be current."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._group import Group
from rpc_backends_core._process_state import STATE

#: Workers that may all connect to one at the same time: TensorPipe makes four connections for a call to a
#: worker, and 128 can wait to be accepted; this leaves half of them free.
_LARGEST_GATHER = 16
#: How long to wait for RRefs that torch cannot delete.
_IN_VAIN = timedelta(milliseconds=100)


def shutdown(graceful: bool, timeout: float) -> None:
    """Stop RPC; see :func:`~rpc_backends_core._patches.shutdown`.

    Torch's own shutdown serves every static group. A dynamic one is left by the agent's own
    ``leave_group(timeout)`` if it has that: torch's way calls each member in turn while it holds a token
    that everybody waits for, and keeps the token when a member is dead.
    """
    if STATE.session is not None and STATE.session.is_forked:
        return  # neither the agent nor the place in the group is this process's to give up
    leave: Any = None
    if graceful and torch_internals.has_current_agent():
        # Looked for behind an agent, too, that a hook has put in its place; what is in front goes first.
        ways = (getattr(agent, "leave_group", None) for agent in reversed(_agents()))
        leave = next((way for way in ways if way is not None), None)
        del ways
    if leave is None:
        STATE.leaves_gracefully = graceful
        try:
            torch_internals.original_api("shutdown")(graceful, timeout)
        finally:
            STATE.leaves_gracefully = False
        return
    try:
        leave(timeout)
    finally:
        del leave
        torch_internals.finalize_shutdown()


def wait_all_workers(timeout: float) -> None:
    """Wait until all workers of a static group have come here, as each does in a graceful shutdown.

    Torch's way is that all call the first worker, at the same time, and it calls all of them, each call
    with the names of all. TensorPipe does not survive that with some dozens of workers on one host, so a
    large group of an installed package meets through its store, and nobody connects to anybody for it.
    (A small one keeps to torch's way, which torch's own tests look into.)
    """
    groups = (getattr(agent, "group", None) for agent in _agents())
    group = next((one for one in groups if isinstance(one, Group) and one.world_size), None)
    if group is None or len(group.members) <= _LARGEST_GATHER:
        torch_internals.original_api("_wait_all_workers")(timeout)
    else:
        group.meet(timeout)


def reset_current_agent() -> None:
    """Let go of the current agent, and of all that was held for it."""
    torch_internals.original_api("_reset_current_rpc_agent")()
    STATE.had_a_group = True
    session, STATE.session = STATE.session, None
    if session is not None:
        # A shutdown that fails gets here too, with its exception under way: the others are not leaving.
        session.close(together=STATE.leaves_gracefully and sys.exc_info()[1] is None)


def delete_rrefs(*timeout: timedelta) -> None:
    """Delete the RRefs of this worker, as torch does before it leaves a group.

    Torch makes its RRefContext once in a process and marks it destroyed at the first shutdown; RRefs of
    a later group are never deleted, and waiting for that (100 s in torch) is in vain.
    """
    wait = (_IN_VAIN,) if STATE.had_a_group else timeout
    torch_internals.original_api("_delete_all_user_and_unforked_owner_rrefs")(*wait)


def _agents() -> list[Any]:
    """Return the agents of the running session: the backend's own, and what a hook put before it."""
    found = list(STATE.session.agents) if STATE.session is not None else []
    if torch_internals.has_current_agent():
        found.append(torch_internals.current_agent())
    return found
