"""Stopping RPC: ``shutdown``, and the cleanup when an agent is no longer current."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._group import Group
from rpc_backends_core._process_state import STATE

#: Time limit for deleting RRefs that torch cannot delete.
_IN_VAIN = timedelta(milliseconds=100)


def shutdown(graceful: bool, timeout: float) -> None:
    """Stop RPC; see :func:`~rpc_backends_core._patches.shutdown`.

    Static groups use torch's own shutdown. A dynamic group is left with the agent's
    ``leave_group(timeout)``, if the agent has that method. Torch's procedure would hold a token that all
    members wait for while it calls each member in turn, and would keep the token if a member is dead.
    """
    if STATE.session is not None and STATE.session.is_forked:
        return  # a forked child: the agent and the membership belong to the parent
    leave: Any = None
    if graceful and torch_internals.has_current_agent():
        # A hook may have wrapped the agent; search the wrappers first, then what they wrap.
        ways = (getattr(agent, "leave_group", None) for agent in reversed(_agents()))
        leave = next((way for way in ways if way is not None), None)
        del ways
    if leave is None:
        STATE.leaves_gracefully, STATE.handled = graceful, sys.exc_info()[1]
        try:
            torch_internals.shutdown(graceful, timeout)
        finally:
            STATE.leaves_gracefully, STATE.handled = False, None
        return
    try:
        leave(timeout)
    finally:
        del leave
        torch_internals.finalize_shutdown()


def wait_all_workers(timeout: float) -> None:
    """Wait until all workers of a static group have called this; graceful shutdown does.

    In torch, all workers call the first worker at once and it calls all of them back, each time with
    every worker's name. That opens connections only to close them, and TensorPipe crashes when a few
    dozen workers on one host do it. So an installed backend's group uses a barrier on its store, which
    also notices a worker of this host that has ended.
    """
    groups = (getattr(agent, "group", None) for agent in _agents())
    group = next((group for group in groups if isinstance(group, Group) and group.world_size), None)
    if group is None:
        torch_internals.original_api("_wait_all_workers")(timeout)
    elif len(group.members) > 1:
        group.meet(timeout)


def reset_current_agent() -> None:
    """Release the current agent and everything held for it."""
    torch_internals.original_api("_reset_current_rpc_agent")()
    STATE.had_a_group = True
    STATE.running = None
    session, STATE.session = STATE.session, None
    if session is not None:
        # A failing shutdown gets here too, while its exception propagates. The other workers then stay.
        error = _error()
        if STATE.leaves_gracefully and error is not None:
            session.report_failed_shutdown(error)
        session.close(together=STATE.leaves_gracefully and error is None)


def destroy_rref_context(*ignores_leaks: bool) -> None:
    """Destroy torch's RRefContext; if other workers may still make calls, after the agent has stopped.

    Torch stops the agent afterwards. It reads and clears the RRefs of this worker without a lock, so a
    request that another worker makes meanwhile, and that creates or deletes an RRef, crashes the process.
    In a successful graceful shutdown of a static group no worker makes calls any more. The agent stops
    afterwards then: a function that has outlived its time-out would otherwise still create its RRef, and
    torch reports that as a leak.
    """
    try:
        if not STATE.leaves_gracefully or _error() is not None:
            torch_internals.current_agent().shutdown()
    finally:
        torch_internals.original_api("_destroy_rref_context")(*ignores_leaks)


def delete_rrefs(*timeout: timedelta) -> None:
    """Delete this worker's RRefs, as torch does before it leaves a group.

    Torch creates one RRefContext per process and marks it destroyed at the first shutdown. RRefs of a
    later group are never deleted, so waiting for their deletion (100 s in torch) is useless.
    """
    wait = (_IN_VAIN,) if STATE.had_a_group else timeout
    torch_internals.original_api("_delete_all_user_and_unforked_owner_rrefs")(*wait)


def _error() -> BaseException | None:
    """Return the exception with which the running shutdown fails; None if it has not failed.

    A program may call ``shutdown`` while it handles an exception of its own, in ``finally`` for example.
    """
    error = sys.exc_info()[1]
    return None if error is STATE.handled else error


def _agents() -> list[Any]:
    """Return the agents of the running session: the backend's, and those hooks wrapped around it."""
    agents = list(STATE.session.agents) if STATE.session is not None else []
    if torch_internals.has_current_agent():
        agents.append(torch_internals.current_agent())
    return agents
