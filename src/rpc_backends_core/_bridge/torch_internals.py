"""Torch's private names that the bridge stands on: each with its use and what happens without it."""

from __future__ import annotations

import sys
from typing import NamedTuple


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
    PrivateName(
        "torch._C._distributed_rpc.TensorPipeAgent",
        "the engine of TENSORPIPE; subclassed to keep groups",
        "the TENSORPIPE plugin cannot be loaded",
    ),
    PrivateName(
        "torch._C._distributed_rpc.WorkerInfo",
        "what names a worker in a call; validates names",
        "init_rpc fails",
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
