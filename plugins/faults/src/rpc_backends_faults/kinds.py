"""The kinds of faults with their keys, and the message types that rules can name."""

from __future__ import annotations

from dataclasses import dataclass

#: The request types of torch (2.13), except the two wrappers: rules see the message inside a wrapper.
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
#: The type that `duplicate` never affects.
NEVER_TWICE = "BACKWARD_AUTOGRAD_REQ"
#: The types that call a function, which a rule can name.
CALLS = ("SCRIPT_CALL", "PYTHON_CALL", "SCRIPT_REMOTE_CALL", "PYTHON_REMOTE_CALL")

#: Calls that start and stop groups, in torch and in these packages. Rules skip them by default.
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
    :ivar needs: the keys that its rules must have.
    :ivar takes: the keys that its rules may have, besides the keys of all rules.
    """

    does: str
    needs: frozenset[str] = frozenset()
    takes: frozenset[str] = frozenset()


def _keys(*names: str) -> frozenset[str]:
    return frozenset(names)


KINDS = {
    "fail": Kind("fails at once with an error and is not sent", takes=_keys("text", "receiver")),
    "drop": Kind("is not sent, so its caller times out", takes=_keys("receiver")),
    "delay": Kind("is sent later", _keys("seconds"), _keys("receiver")),
    "reply_lost": Kind(
        "is executed, but its reply is lost, so its caller times out", takes=_keys("receiver")
    ),
    "reply_fail": Kind(
        "is executed, but its caller gets an error instead of the reply",
        takes=_keys("text", "receiver"),
    ),
    "reply_delay": Kind(
        "is executed, and its reply arrives later", _keys("seconds"), _keys("receiver")
    ),
    "duplicate": Kind("is sent more than once", takes=_keys("copies", "receiver")),
    "reorder": Kind(
        "is held until later requests to the same worker are answered",
        takes=_keys("others", "within", "receiver"),
    ),
    "partition": Kind("is lost, and so is each reply", takes=_keys("one_way", "receiver")),
    "bandwidth": Kind(
        "waits for its turn on a slow link", _keys("rate"), _keys("one_way", "receiver")
    ),
    "pause": Kind("waits while the worker is paused", takes=_keys("seconds")),
    "crash": Kind("is not sent: its sender's process ends", takes=_keys("exit_code", "receiver")),
}
#: Kinds whose rules may use the key `worker` instead of `sender`.
OF_A_WORKER = ("pause", "crash")
