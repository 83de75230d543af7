"""Torch's private names that this project uses: a list with the purpose of each, and accessors.

No other module, of the core or of a package, uses a private name of torch. `_patches` replaces some of
these names, and uses what it replaces.
"""

from __future__ import annotations

import operator
import os
import pickle
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc

from rpc_backends_core._process_state import STATE

#: The versions of torch in which `make matrix` found the older names of the list.
_MATRIX = "2.6.0, 2.9.1, 2.13.0, 2.14.1, 2.15.0"
#: The versions in which the others were found.
_LATER = "2.9.1, 2.13.0"
_LATEST = "2.13.0"


class PrivateName(NamedTuple):
    """A name in torch outside its documented interface.

    :ivar use: what this project needs it for.
    :ivar without: what happens without it.
    :ivar seen: the versions of torch in which it was found.
    """

    path: str
    use: str
    without: str
    seen: str = _MATRIX


#: Seconds (24 days). Torch keeps timeouts as milliseconds in 32 bits, and a longer one, such as infinity,
#: would become negative.
LONGEST_TIMEOUT = 2147483.0
#: What `rpc-backends doctor` looks for in the installed torch. `docs/explanation/if-torch-changes.md`
#: shows this list.
NAMES = (
    PrivateName(
        "torch.distributed.rpc.backend_registry",
        "where torch keeps BackendType and the registry's functions",
        "the bridge cannot be installed; torch's RPC is unchanged",
    ),
    PrivateName(
        "torch.distributed.rpc.api._set_and_start_rpc_agent",
        "called for every agent before it becomes current; runs the agent hook",
        "agent hooks do not run",
    ),
    PrivateName(
        "torch.distributed.rpc.api._reset_current_rpc_agent",
        "called when an agent stops being current; closes stores and announces the departure",
        "the store of a group stays open until the process ends",
    ),
    PrivateName(
        "torch.distributed.rpc.api._destroy_rref_context",
        "called at shutdown; the agent stops before it, as requests must not use RRefs meanwhile",
        "a worker that leaves while others call it may crash",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.api._delete_all_user_and_unforked_owner_rrefs",
        "limited to a short time in a later group of a process, where torch cannot delete RRefs",
        "shutdown of a later group takes 100 s if it used RRefs",
    ),
    PrivateName(
        "torch.distributed.rpc.api._wait_all_workers",
        "barrier of a static group before it stops; replaced by a store barrier in large groups",
        "all workers call the first one at shutdown, which crashes TensorPipe in large groups",
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
        "the last step of torch's shutdown",
        "leaving a dynamic group fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._ALL_WORKER_NAMES",
        "the workers that _all_gather and the shutdown barrier wait for; updated in dynamic groups",
        "_all_gather sees only the caller in a dynamic group",
    ),
    PrivateName(
        "torch.distributed.rpc.api._all_gather_sequence_id",
        "counts gathers per set of names; reset when the members of a dynamic group change",
        "a gather hangs after a member rejoins",
    ),
    PrivateName(
        "torch.distributed.rpc.api._all_gather_sequence_id_to_states",
        "what gathers have received; cleared, with the counts, when a static group starts",
        "init_rpc fails",
    ),
    PrivateName(
        "torch.distributed.rpc.api._all_gather_dict_lock",
        "guards the three names above",
        "a gather may hang if a dynamic group changes meanwhile",
    ),
    PrivateName(
        "torch.distributed.rpc.api._cleanup_python_rpc_handler",
        "releases Python functions after a failed start",
        "a failed init_rpc keeps them until the process ends",
    ),
    PrivateName(
        "torch.distributed.rpc.internal._handle_exception",
        "called with each result; raises the errors that results stand for",
        "a result that cannot be unpickled is returned as an AttributeError",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._InternalRPCPickler",
        "its deserialize() makes an AttributeError of a result that it cannot unpickle",
        "a result that cannot be unpickled is returned as an AttributeError",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._internal_rpc_pickler",
        "pickles results, and unpickles calls and results",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal.PythonUDF",
        "a call of a Python function, made for a call that cannot be unpickled",
        "the caller gets torch's error, which does not name the worker",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal.RemoteException",
        "the exception of a called function, with its text and type",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._unpickler",
        "the class that unpickles calls and results; the guard replaces it",
        "init_rpc fails with a guard policy",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._InternalRPCPickler._tensor_receiver",
        "how a pickle names a tensor of its message",
        "init_rpc fails with a guard policy",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._InternalRPCPickler._py_rref_receiver",
        "how a pickle holds an RRef",
        "init_rpc fails with a guard policy",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._InternalRPCPickler._script_module_receiver",
        "how a pickle holds a module of TorchScript; the guard permits it only if its policy lists it",
        "init_rpc fails with a guard policy",
        _LATER,
    ),
    PrivateName(
        "torch._C._jit_get_schemas_for_operator",
        "which overloads an operator has, to check a guard policy",
        "init_rpc fails with a guard policy that lists operators",
        _LATER,
    ),
    PrivateName(
        "torch._utils._rebuild_parameter",
        "how a pickle holds an nn.Parameter",
        "init_rpc fails with a guard policy",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.PyRRef",
        "the class of RRefs in C++; its methods limit timeouts, and name the owner in errors",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.PyRRef._get_type",
        "asks the owner for a type; a timeout is limited, and an error names the owner",
        "import torch leaves torch's RPC unchanged",
        _LATEST,
    ),
    *(
        PrivateName(
            f"torch.distributed.rpc.api.{name}",
            f"sends a call of {what}; refuses tensors on which TensorPipe ends the process",
            "import torch leaves torch's RPC unchanged",
            _LATEST,
        )
        for name, what in (
            ("_invoke_rpc_builtin", "an operator"),
            ("_invoke_remote_builtin", "an operator, for an RRef"),
            ("_invoke_rpc_torchscript", "TorchScript"),
            ("_invoke_remote_torchscript", "TorchScript, for an RRef"),
        )
    ),
    PrivateName(
        "torch.distributed.rpc._init_rpc_backend",
        "starts a backend on the caller's store, for torch's tests and some programs",
        "nothing changes for init_rpc",
        _LATEST,
    ),
    PrivateName(
        "torch.distributed.rpc.internal.serialize",
        "pickles results; the error of a result that cannot be pickled names the worker",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal.deserialize",
        "unpickles calls and results; its errors name the class and the worker",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._internal_rpc_pickler._dispatch_table",
        "how types are pickled; refuses tensors on which TensorPipe ends the process",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.internal._internal_rpc_pickler._tensor_reducer",
        "pickles a tensor after that check",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.api.rpc_async.__wrapped__",
        "a call without torch's check that RPC is initialised, which is made before",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch._mkldnn",
        "the layout of MKL-DNN tensors, which cannot be sent",
        "import torch leaves torch's RPC unchanged",
        _LATER,
    ),
    PrivateName(
        "torch._C._log_api_usage_once",
        "logs the use of init_rpc, as torch does",
        "init_rpc fails",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.options._to_device_map",
        "checks device maps, in the options of TENSORPIPE on a torch without TensorPipe",
        "such options cannot be constructed",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc.options._to_device_list",
        "checks devices, in the options of TENSORPIPE on a torch without TensorPipe",
        "such options cannot be constructed",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc._rref_context_get_debug_info",
        "whether the owners have confirmed all RRefs of this worker, and the metrics of RRefs",
        "leaving a dynamic group of TENSORPIPE fails",
    ),
    PrivateName(
        "torch.distributed.rpc._set_rpc_timeout",
        "changes the default timeout; limited to the longest that torch can represent",
        "a longer timeout, such as infinity, becomes negative",
        _LATER,
    ),
    PrivateName(
        "torch.distributed.rpc._init_counter_lock",
        "guards the name below",
        "init_rpc fails for torch's own and old-style backends",
    ),
    PrivateName(
        "torch.distributed.rpc._init_counter",
        "numbers the groups of backends that do not form groups on the store",
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
        "returns the worker id that torch fixed for this process",
        "init_rpc with another rank after shutdown fails",
    ),
    PrivateName(
        "torch.distributed.autograd._get_debug_info",
        "the metrics of distributed autograd",
        "metrics are not reported",
    ),
)


def missing() -> list[PrivateName]:
    """Return the names that the installed torch does not have."""
    return [name for name in NAMES if not _is_there(name.path)]


def _is_there(path: str) -> bool:
    # via sys.modules: torch.distributed.rendezvous is also the name of a function
    module, _, rest = path.rpartition(".")
    while module not in sys.modules:
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}"
    try:
        operator.attrgetter(rest)(sys.modules[module])
    except AttributeError:
        return False
    return True


# --- agents -----------------------------------------------------------------------------------------


def init_rpc_states(agent: Any) -> None:
    """Make an agent current and start it."""
    rpc.api._init_rpc_states(agent)


def has_current_agent() -> bool:
    """Return whether RPC is initialised in this process."""
    return bool(rpc.api._is_current_rpc_agent_set())


def current_agent() -> Any:
    """Return the current agent; there must be one."""
    return rpc.api._get_current_rpc_agent()


def original(module: str, name: str) -> Any:
    """Return torch's own ``name`` of ``module``, even if the bridge replaced it."""
    for where, what, value in STATE.patches:
        if where.__name__ == module and what == name:
            return value
    return getattr(sys.modules[module], name)


def original_api(name: str) -> Any:
    """Return torch's own ``name`` of ``torch.distributed.rpc.api``, even if the bridge replaced it."""
    return original("torch.distributed.rpc.api", name)


def stop_failed_agent() -> None:
    """Stop the current agent after a failed start.

    Torch's shutdown is not used: it would create RRefContext, which keeps the first agent it sees,
    and RRefs would then fail in every later group of this process.
    """
    current_agent().shutdown()
    rpc.api._cleanup_python_rpc_handler()
    original_api("_reset_current_rpc_agent")()


def shutdown(graceful: bool, timeout: float) -> None:
    """Run torch's shutdown.

    Torch's graceful one imports ``TensorPipeAgent``, so it fails on a torch without TensorPipe. The steps
    that torch takes for other agents are repeated here.
    """
    torchs = original_api("shutdown")
    if not graceful or hasattr(rpc, "TensorPipeAgent") or not has_current_agent():
        torchs(graceful, timeout)
        return
    try:
        rpc.api._wait_all_workers(timeout)
        rpc.api._delete_all_user_and_unforked_owner_rrefs()
        current_agent().join(shutdown=True, timeout=timeout)
    finally:
        torchs(graceful=False)


def finalize_shutdown() -> None:
    """Run the last step of torch's shutdown."""
    rpc.api._finalize_shutdown()


def delete_rrefs(timeout: timedelta) -> None:
    """Delete this worker's RRefs.

    :raises RuntimeError: the owners did not confirm the deletion in time.
    """
    rpc.api._delete_all_user_and_unforked_owner_rrefs(timeout)


def has_unconfirmed_rrefs() -> bool:
    """Return whether any RRef of this worker still awaits its owner's confirmation."""
    return bool(rpc._rref_context_get_debug_info()["num_pending_users"] != "0")


def debug_info() -> dict[str, str]:
    """Return torch's counts of RRefs and of distributed autograd; without RRefs if RPC is not running."""
    info = {f"autograd.{name}": value for name, value in dist_autograd._get_debug_info().items()}
    with suppress(RuntimeError):  # no agent, or it has just stopped
        info |= {
            f"rrefs.{name}": value for name, value in rpc._rref_context_get_debug_info().items()
        }
    return info


def set_rpc_timeout(seconds: float) -> None:
    """Set the default timeout of calls."""
    original("torch.distributed.rpc", "_set_rpc_timeout")(min(seconds, LONGEST_TIMEOUT))


def set_worker_names(names: Iterable[str]) -> None:
    """Make ``_all_gather`` use these workers, and restart its count, so that their counts agree."""
    with rpc.api._all_gather_dict_lock:
        rpc.api._ALL_WORKER_NAMES = set(names)
        rpc.api._all_gather_sequence_id.clear()


def forget_gathers() -> None:
    """Restart the counts of ``_all_gather``, so that new processes and older ones agree."""
    with rpc.api._all_gather_dict_lock:
        rpc.api._all_gather_sequence_id.clear()
        rpc.api._all_gather_sequence_id_to_states.clear()


def set_profiler_rank(rank: int) -> None:
    """Set the rank shown in profiles."""
    rpc._set_profiler_node_id(rank)


def log_api_usage() -> None:
    """Log the API use, as torch's ``init_rpc`` does."""
    torch._C._log_api_usage_once("torch.distributed.init_rpc")


# --- options ----------------------------------------------------------------------------------------


def device_map(devices: Any) -> dict[torch.device, torch.device]:
    """Return a device map as torch's ``TensorPipeRpcBackendOptions`` keep it, with torch's errors."""
    mapped: dict[torch.device, torch.device] = _options_module()._to_device_map(devices)
    return mapped


def device_list(devices: Any) -> list[torch.device]:
    """Return devices as torch's ``TensorPipeRpcBackendOptions`` keep them, with torch's errors."""
    listed: list[torch.device] = _options_module()._to_device_list(devices)
    return listed


def _options_module() -> Any:
    return sys.modules["torch.distributed.rpc.options"]


# --- results ----------------------------------------------------------------------------------------


def why_not_unpickled(result: AttributeError) -> AttributeError | None:
    """Return the error of pickle for which torch has made ``result``; None for any other exception.

    A function may return an ``AttributeError`` too. The one that torch makes has a cause, which torch's
    method has caught.
    """
    cause = result.__cause__
    if not isinstance(cause, AttributeError) or cause.__traceback__ is None:
        return None
    pickler = rpc.internal._InternalRPCPickler
    catcher = cause.__traceback__.tb_frame.f_code
    return cause if catcher is pickler.deserialize.__code__ else None


#: The module whose classes torch's pickles of calls and of exceptions begin with.
PICKLED_FROM = "torch.distributed.rpc.internal"

#: The module of the functions that torch calls for a method called through an RRef.
CALLS_OF_METHODS = "torch.distributed.rpc.rref_proxy"


#: The class, as MODULE:QUALNAME, whose methods are pickled for most functions of the module torch.
FUNCTIONS_OF_TORCH = "torch._C:_VariableFunctionsClass"


def is_remote_exception(result: Any) -> bool:
    """Return whether a result stands for an exception of the called function."""
    return isinstance(result, rpc.internal.RemoteException)


def remote_exception(text: str, kind: type[BaseException]) -> Any:
    """Return the result that stands for an exception of the called function."""
    return rpc.internal.RemoteException(text, kind)


def raising_call(error: Exception) -> Any:
    """Return a call that torch runs like one that it has unpickled, and that raises ``error``."""
    return rpc.internal.PythonUDF(_raise, (error,), {})


def _raise(error: Exception) -> None:
    raise error


def python_call(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return a call of a Python function, which torch runs."""
    return rpc.internal.PythonUDF(function, arguments, keywords)


def call_parts(call: Any) -> tuple[Any, Any, Any] | None:
    """Return function, arguments and keywords of a call that was unpickled; None for another value."""
    return tuple(call) if type(call) is rpc.internal.PythonUDF else None


def pickled_classes() -> dict[str, type]:
    """Return the classes of torch's that a call and an exception are pickled as, by their names."""
    return {kind.__name__: kind for kind in (rpc.internal.PythonUDF, rpc.internal.RemoteException)}


def names_in_calls() -> dict[str, dict[str, Any]]:
    """Return what the pickle of a call with tensors names apart from its function, by module and name."""
    own = (rpc.internal.PythonUDF, rpc.internal._InternalRPCPickler)
    return {
        PICKLED_FROM: {kind.__name__: kind for kind in own},
        "builtins": {"getattr": getattr},
    }


def overloads(operator: str) -> list[str]:
    """Return the names of the overloads of an operator; an empty list if torch has no such operator."""
    schemas: Any = torch._C._jit_get_schemas_for_operator(operator)
    return [schema.overload_name for schema in schemas]


def receivers() -> dict[str, Callable[[Any], Any]]:
    """Return what unpickles tensors, RRefs and modules of TorchScript, by the names in pickles."""
    pickler = rpc.internal._InternalRPCPickler
    return {
        name: getattr(pickler, name)
        for name in ("_tensor_receiver", "_py_rref_receiver", "_script_module_receiver")
    }


def rebuild_parameter() -> Any:
    """Return the function that makes an ``nn.Parameter`` of a tensor."""
    return torch._utils._rebuild_parameter


def gather_count(members: str) -> int:
    """Return how many gathers of some members this worker has begun.

    :param members: their names, sorted and joined.
    """
    return int(rpc.api._all_gather_sequence_id.get(members, 0))


def set_unpickler(unpickler: Any) -> None:
    """Make torch unpickle calls and results with ``unpickler(file).load()``; None restores pickle's."""
    assert rpc.internal._unpickler is not None
    rpc.internal._unpickler = pickle.Unpickler if unpickler is None else unpickler


def with_text(error: Any, change: Callable[[str], str]) -> Any:
    """Return a ``RemoteException`` for which torch shows its text, changed by ``change``."""
    # torch encodes the text and then decodes it as unicode_escape
    return error._replace(msg=change(error.msg).encode("unicode_escape").decode("ascii"))


# --- groups -----------------------------------------------------------------------------------------


def rendezvous(init_method: str, rank: int, world_size: int | None, **extra: Any) -> Any:
    """Return torch's rendezvous iterator; torch's public function does not support dynamic groups."""
    if world_size is not None:
        return dist.rendezvous(init_method, rank=rank, world_size=world_size, **extra)
    return _rendezvous_module()._rendezvous_helper(init_method, rank, None, **extra)


def launcher_hosts_store(init_method: str) -> bool:
    """Return whether torchrun hosts the store at this address, so that no worker does.

    Since torch 2.14, it does so only at ``MASTER_ADDR:MASTER_PORT``.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    serves = getattr(_rendezvous_module(), "_agent_store_serves", None)
    if serves is None or init_method.startswith("env:"):
        return True
    address = urlsplit(init_method)
    return bool(serves(address.hostname, address.port))


def _rendezvous_module() -> Any:
    # by the table of modules: torch.distributed.rendezvous is a function too
    return sys.modules["torch.distributed.rendezvous"]


def numbered_store(store: Any, rendezvous_iterator: Any, rank: int) -> Any:
    """Return a group's store as torch makes it: with a prefix from a counter of this process."""
    # The store must outlive this call: other workers may still be using it.
    rpc.rendezvous_iterator = rendezvous_iterator
    with rpc._init_counter_lock:
        store = dist.PrefixStore(f"rpc_prefix_{rpc._init_counter}", store)
        rpc._init_counter += 1
    init_autograd(rank)
    return store


def init_autograd(worker_id: int) -> None:
    """Start the distributed autograd container; later calls must pass the same id."""
    dist_autograd._init(worker_id)


def fixed_worker_id() -> int | None:
    """Return the worker id that torch has fixed for this process; None in a fresh process.

    The autograd container keeps the first id it receives and rejects any other ("Container is already
    initialized with worker_id").
    """
    try:
        return (int(dist_autograd._get_max_id()) >> 48) & 0xFFFF
    except RuntimeError:
        return None
