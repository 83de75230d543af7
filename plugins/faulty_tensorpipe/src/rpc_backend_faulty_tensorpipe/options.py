"""The options of FAULTY_TENSORPIPE: torch's options, each with a default and clear errors."""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

# This import makes torch define the faulty agent's classes. It also registers torch's own backend.
from torch.distributed.rpc._testing import FaultyTensorPipeRpcBackendOptions
from torch.distributed.rpc.constants import DEFAULT_NUM_WORKER_THREADS

#: The message types that torch's agent can fail or delay (torch 2.13).
MESSAGE_TYPES = (
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "RREF_USER_DELETE",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    "PYTHON_CALL",
    "SCRIPT_CALL",
    "PYTHON_REMOTE_CALL",
    "SCRIPT_REMOTE_CALL",
    "PYTHON_RREF_FETCH_CALL",
    "SCRIPT_RREF_FETCH_CALL",
)


class OptionsWithRules(FaultyTensorPipeRpcBackendOptions):
    """Torch's options with fault rules; rpc-backends-faults reads them from ``fault_rules``."""

    fault_rules: Any = None


def construct_rpc_backend_options(
    rpc_timeout: float,
    init_method: str,
    num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
    messages_to_fail: Iterable[str] = (),
    messages_to_delay: Mapping[str, float] | None = None,
    num_fail_sends: int = 0,
    rules: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None = None,
) -> FaultyTensorPipeRpcBackendOptions:
    """Construct torch's ``FaultyTensorPipeRpcBackendOptions``; by default they cause no faults.

    :param rpc_timeout: default timeout of calls in seconds; 0 means no timeout.
    :param init_method: URL of the rendezvous.
    :param num_worker_threads: number of threads that execute requests.
    :param messages_to_fail: message types (:data:`MESSAGE_TYPES`) whose first sends fail.
    :param messages_to_delay: by message type, the seconds to sleep before sending.
    :param num_fail_sends: how many sends of each distinct message fail before one succeeds.
    :param rules: the path of a rule file for rpc-backends-faults, or rules with the keys of such a file.
        They apply in addition to the other options.
    :raises TypeError: an option is unknown, or a value has the wrong type.
    :raises ValueError: a message type is unknown, a delay or the count is negative, or ``rules`` is given
        and rpc-backends-faults is not installed.
    """
    if isinstance(messages_to_fail, str):
        raise TypeError(
            f"messages_to_fail is the string {messages_to_fail!r}; FAULTY_TENSORPIPE "
            "needs a list of message types."
        )
    fail, delay = list(messages_to_fail), dict(messages_to_delay or {})
    _check_types("messages_to_fail", fail)
    _check_types("messages_to_delay", delay)
    for kind, seconds in delay.items():
        if not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"messages_to_delay[{kind!r}] is {seconds!r}; FAULTY_TENSORPIPE needs a number of "
                "seconds, 0 or more."
            )
    if isinstance(num_fail_sends, bool) or not isinstance(num_fail_sends, int):
        raise TypeError(f"num_fail_sends is {num_fail_sends!r}; FAULTY_TENSORPIPE needs an int.")
    if num_fail_sends < 0:
        raise ValueError(f"num_fail_sends is {num_fail_sends}; FAULTY_TENSORPIPE needs 0 or more.")
    if rules is not None and importlib.util.find_spec("rpc_backends_faults") is None:
        raise ValueError(
            "FAULTY_TENSORPIPE was given the option rules, which needs the package rpc-backends-faults, "
            "and that package is not installed. Run: pip install rpc-backends-faults"
        )
    type_ = FaultyTensorPipeRpcBackendOptions if rules is None else OptionsWithRules
    options: FaultyTensorPipeRpcBackendOptions = type_(
        num_worker_threads=num_worker_threads,
        rpc_timeout=rpc_timeout,
        init_method=init_method,
        messages_to_fail=fail,
        messages_to_delay=delay,
        num_fail_sends=num_fail_sends,
    )
    if isinstance(options, OptionsWithRules):
        options.fault_rules = rules
    return options


def _check_types(option: str, kinds: Iterable[str]) -> None:
    for kind in kinds:
        if kind not in MESSAGE_TYPES:
            close = difflib.get_close_matches(str(kind).upper(), MESSAGE_TYPES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{option} contains the unknown message type {kind!r}.{hint} "
                f"FAULTY_TENSORPIPE knows: {', '.join(MESSAGE_TYPES)}."
            )
