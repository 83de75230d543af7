"""Torch's private names that this project uses: each listed with its use, and a function for each use.

No other module, of the core or of a package, touches a private name of torch; `patches` replaces some.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_core._process_state import STATE


class PrivateName(NamedTuple):
    """A name of torch that is not part of its documented interface."""

    path: str
    use: str
    without: str


#: Seen in torch 2.13.0; `rpc-backends doctor` says which are missing in the torch it finds.
SEEN_IN = "2.13.0"
NAMES = (
    PrivateName(
        "torch.distributed.rpc.backend_registry",
        "where torch keeps BackendType and the registry's functions",
        "the bridge cannot be installed; RPC stays as torch ships it",
    ),
    PrivateName(
        "torch.distributed.rpc.api._set_and_start_rpc_agent",
        "every agent passes here before it is current: the agent hook",
        "hooks on the agent are not called",
    ),
    PrivateName(
        "torch.distributed.rpc.api._reset_current_rpc_agent",
        "every agent passes here when it ceases: stores are closed, leaving is announced",
        "the store of a group stays open until the process ends",
    ),
    PrivateName(
        "torch.distributed.rpc.api._delete_all_user_and_unforked_owner_rrefs",
        "given a short time in a later group of a process, where torch cannot delete RRefs",
        "shutdown of a later group takes 100 s if RRefs were used in it",
    ),
    PrivateName(
        "torch.distributed.rpc.api._wait_all_workers",
        "where a static group meets before it stops; a large one does through its store",
        "all call the first worker at shutdown, which TensorPipe does not survive in large groups",
    ),
    PrivateName(
        "torch.distributed.rpc.api._init_rpc_states",
        "makes an agent current",
        "init_rpc fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._is_current_rpc_agent_set",
        "whether RPC is initialised",
        "init_rpc fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._get_current_rpc_agent",
        "the agent that shutdown stops",
        "shutdown fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._finalize_shutdown",
        "what torch does last in a shutdown",
        "leaving a dynamic group fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._ALL_WORKER_NAMES",
        "whom _all_gather and the barrier at shutdown wait for; kept right in dynamic groups",
        "_all_gather sees only the caller in a dynamic group",
    ),
    PrivateName(
        "torch.distributed.rpc.api._all_gather_sequence_id",
        "numbers gathers per set of names; restarted when the members of a dynamic group change",
        "a gather after a member came back hangs",
    ),
    PrivateName(
        "torch.distributed.rpc.api._all_gather_dict_lock",
        "guards the two names above",
        "a gather in a dynamic group that changes meanwhile may hang",
    ),
    PrivateName(
        "torch.distributed.rpc.api._cleanup_python_rpc_handler",
        "lets go of Python functions after a start that failed",
        "a failed init_rpc leaves them until the process ends",
    ),
    PrivateName(
        "torch.distributed.rpc._rref_context_get_debug_info",
        "whether the owners of this worker's RRefs have confirmed all of them",
        "leaving a dynamic group of TENSORPIPE fails",
    ),
    PrivateName(
        "torch.distributed.rpc._init_counter_lock",
        "guards the name below",
        "init_rpc fails for torch's own and old-style backends",
    ),
    PrivateName(
        "torch.distributed.rpc._init_counter",
        "numbers the groups of backends that do not form groups by the store",
        "init_rpc fails for torch's own and old-style backends",
    ),
    PrivateName(
        "torch.distributed.rpc._set_profiler_node_id",
        "the rank in profiles",
        "profiles lack the rank",
    ),
    PrivateName(
        "torch.distributed.rendezvous._rendezvous_helper",
        "the store of a dynamic group",
        "dynamic groups cannot be joined",
    ),
    PrivateName(
        "torch.distributed.autograd._init",
        "starts the distributed autograd container",
        "init_rpc fails",
    ),
    PrivateName(
        "torch.distributed.autograd._get_max_id",
        "tells the worker id that torch has fixed for this process",
        "init_rpc after shutdown under another rank fails",
    ),
)


def missing() -> list[PrivateName]:
    """Return the names that the installed torch does not have."""
    from importlib import import_module

    def there(path: str) -> bool:
        parent, _, name = path.rpartition(".")
        try:
            import_module(parent)
        except ImportError:
            return False
        # by the table of modules: torch.distributed.rendezvous is a function too
        return hasattr(sys.modules[parent], name)

    return [name for name in NAMES if not there(name.path)]


# --- agents -----------------------------------------------------------------------------------------


def init_rpc_states(agent: Any) -> None:
    """Make an agent current and start it."""
    rpc.api._init_rpc_states(agent)


def has_current_agent() -> bool:
    """Return whether RPC is initialised in this process."""
    return bool(rpc.api._is_current_rpc_agent_set())


def current_agent() -> Any:
    """Return the agent that is current; there must be one."""
    return rpc.api._get_current_rpc_agent()


def original(module: str, name: str) -> Any:
    """Return what torch's ``module`` had under ``name`` before the bridge replaced it."""
    for where, what, value in STATE.patches:
        if where.__name__ == module and what == name:
            return value
    return getattr(sys.modules[module], name)


def original_api(name: str) -> Any:
    """Return what ``torch.distributed.rpc.api`` had under ``name`` before the bridge replaced it."""
    return original("torch.distributed.rpc.api", name)


def stop_failed_agent() -> None:
    """Stop the current agent after a start that failed.

    Not by torch's shutdown, which would make RRefContext. That keeps the agent that it first sees, and
    RRefs would not work in any later group of this process.
    """
    current_agent().shutdown()
    rpc.api._cleanup_python_rpc_handler()
    original_api("_reset_current_rpc_agent")()


def finalize_shutdown() -> None:
    """Do what torch does last in a shutdown."""
    rpc.api._finalize_shutdown()


def delete_rrefs(timeout: timedelta) -> None:
    """Delete this worker's RRefs.

    :raises RuntimeError: their owners have not confirmed it in time.
    """
    rpc.api._delete_all_user_and_unforked_owner_rrefs(timeout)


def has_unconfirmed_rrefs() -> bool:
    """Return whether RRefs of this worker wait for their owners' confirmation."""
    return bool(rpc._rref_context_get_debug_info()["num_pending_users"] != "0")


def set_worker_names(names: Iterable[str]) -> None:
    """Make ``_all_gather`` span these workers, and number gathers alike on all of them."""
    with rpc.api._all_gather_dict_lock:
        rpc.api._ALL_WORKER_NAMES = set(names)
        rpc.api._all_gather_sequence_id.clear()


def set_profiler_rank(rank: int) -> None:
    """Set the rank that profiles show."""
    rpc._set_profiler_node_id(rank)


def log_api_usage() -> None:
    """Count a start as torch's ``init_rpc`` does."""
    torch._C._log_api_usage_once("torch.distributed.init_rpc")


# --- groups -----------------------------------------------------------------------------------------


def rendezvous(init_method: str, rank: int, world_size: int | None, **extra: Any) -> Any:
    """Return torch's rendezvous; its public function cannot say that a group is dynamic."""
    if world_size is not None:
        return dist.rendezvous(init_method, rank=rank, world_size=world_size, **extra)
    # by the table of modules: torch.distributed.rendezvous is a function too
    module = sys.modules["torch.distributed.rendezvous"]
    return module._rendezvous_helper(init_method, rank, None, **extra)


def numbered_store(store: Any, rendezvous_iterator: Any, rank: int) -> Any:
    """Return the store of a group as torch makes it: numbered by a counter of this process."""
    # The store must outlive this call for workers that are not through yet.
    rpc.rendezvous_iterator = rendezvous_iterator
    with rpc._init_counter_lock:
        store = dist.PrefixStore(f"rpc_prefix_{rpc._init_counter}", store)
        rpc._init_counter += 1
    init_autograd(rank)
    return store


def init_autograd(worker_id: int) -> None:
    """Start the distributed autograd container; a second call must give the same id."""
    dist_autograd._init(worker_id)


def fixed_worker_id() -> int | None:
    """Return the worker id that torch has fixed for this process, None in a fresh process.

    The autograd container takes the first id it is given and refuses any other ("Container is already
    initialized with worker_id").
    """
    try:
        return (int(dist_autograd._get_max_id()) >> 48) & 0xFFFF
    except RuntimeError:
        return None
