"""What rules can say: kinds of faults, types of messages, and which keys each kind has."""

from __future__ import annotations

from dataclasses import dataclass

#: Requests of torch (2.13), less the two that wrap others: those are looked at as what they wrap.
MESSAGE_TYPES = (
    "SCRIPT_CALL",
    "PYTHON_CALL",
    "SCRIPT_REMOTE_CALL",
    "PYTHON_REMOTE_CALL",
    "SCRIPT_RREF_FETCH_CALL",
    "PYTHON_RREF_FETCH_CALL",
    "RREF_USER_DELETE",
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "BACKWARD_AUTOGRAD_REQ",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    "RREF_BACKWARD_REQ",
)
WRAPPERS = ("FORWARD_AUTOGRAD_REQ", "RUN_WITH_PROFILING_REQ")
#: What `duplicate` leaves alone.
NEVER_TWICE = "BACKWARD_AUTOGRAD_REQ"
#: Those that call a function, which a rule can name.
CALLS = ("SCRIPT_CALL", "PYTHON_CALL", "SCRIPT_REMOTE_CALL", "PYTHON_REMOTE_CALL")

#: Calls by which torch and these packages start and stop groups: left alone, unless a rule wants them.
HOUSEKEEPING = (
    "torch.distributed.rpc.api._gather_to_leader",
    "torch.distributed.rpc.api._broadcast_to_followers",
    "torch.distributed.rpc.backend_registry._*",
    "torch.distributed.rpc._utils._update_group_membership",
    "torch.distributed.rpc.api._update_group_membership",
    "rpc_backend_tensorpipe.dynamic_group.*",
    "rpc_backends_faults.*",
)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    :ivar does: what happens to a message, in words.
    :ivar needs: keys that its rules must have.
    :ivar takes: keys that its rules may have, beside those of all rules.
    """

    does: str
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


def _keys(*names: str) -> frozenset[str]:
    return frozenset(names)


KINDS = {
    "fail": Kind("fails at once with an error, and is not sent", takes=_keys("text", "receiver")),
    "drop": Kind("is not sent, so its caller times out", takes=_keys("receiver")),
    "delay": Kind("is sent later", _keys("seconds"), _keys("receiver")),
    "reply_lost": Kind(
        "is executed, but its answer is lost, so its caller times out", takes=_keys("receiver")
    ),
    "reply_fail": Kind(
        "is executed, but its caller gets an error for an answer", takes=_keys("text", "receiver")
    ),
    "reply_delay": Kind(
        "is executed, and its answer comes later", _keys("seconds"), _keys("receiver")
    ),
    "duplicate": Kind("is sent more than once", takes=_keys("copies", "receiver")),
    "reorder": Kind(
        "is held until others to the same worker are answered",
        takes=_keys("others", "within", "receiver"),
    ),
    "partition": Kind("is lost, and so is an answer", takes=_keys("one_way", "receiver")),
    "bandwidth": Kind(
        "waits for its turn on a slow link", _keys("rate"), _keys("one_way", "receiver")
    ),
    "pause": Kind("waits while the worker is paused", takes=_keys("seconds")),
    "crash": Kind(
        "is not sent: the process of its sender ends", takes=_keys("exit_code", "receiver")
    ),
}
#: Kinds whose rules may call their senders `worker`.
OF_A_WORKER = ("pause", "crash")
