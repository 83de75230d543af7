"""Puts a policy in force for the workers of this process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any

from rpc_backends_agents import TransportAgent, describe_guard
from rpc_backends_core.spi import RefusedError, torch_internals
from rpc_backends_guard import learning, names
from rpc_backends_guard.audit import Audit
from rpc_backends_guard.calls import Decisions
from rpc_backends_guard.policy import Policy, PolicyError, place
from rpc_backends_guard.unpickling import AgainUnpickler, GuardError, resolve

logger = logging.getLogger("rpc_backends.guard")


def start(agent: Any, backend: str, policy: Policy) -> Any:
    """Guard an agent that has not started yet.

    :returns: the agent.
    :raises PolicyError: the policy cannot be honoured to the letter.
    :raises RefusedError: the backend cannot be guarded completely, and the policy asks for that.
    """
    worker = agent.get_worker_info().name
    inner = _native(agent)
    if inner is None and not policy.allow_partial:
        raise RefusedError(
            f"{policy.source} cannot be enforced on {backend or 'this backend'}: operators, TorchScript, "
            "values of RRefs and the names of callers are decided in C++, which only agents of "
            "rpc-backends-agents (ZEROMQ, UCX) let the guard do. Use such a backend, or set "
            "`allow_partial = true` in the policy to guard Python's functions and types alone."
        )
    if (policy.identities or policy.revoked) and not _proves_names(inner):
        raise RefusedError(
            f"{policy.source} has [identities] or `revoked`, and worker {worker!r} and its peers do not "
            f"prove who they are: {backend or 'this backend'} has no certificates. Start ZEROMQ or UCX "
            "with certificates (RPC_BACKENDS_ZEROMQ_CERTIFICATE, RPC_BACKENDS_UCX_CERTIFICATE), or "
            "remove both from the policy."
        )
    problems = _unknown(policy, worker)
    if problems:
        raise PolicyError("\n".join(problems))
    audit = Audit(policy.audit, worker)
    threads = 16 if inner is None else inner.num_worker_threads  # TENSORPIPE's default
    decisions = Decisions(policy, worker, audit, is_partial=inner is None, threads=threads)
    if inner is None:
        logger.warning(
            "the guard of RPC worker %r is partial on %s: operators, TorchScript, values of RRefs, "
            "autograd and profiling are not guarded, and only rules for the peer '*' apply, because the "
            "backend does not tell who calls",
            worker,
            backend,
        )
    else:
        inner.set_policy(decisions.native)
    describe_guard(f"{'enforces' if policy.enforces else 'warns'} sha256 {policy.digest}")
    torch_internals.set_unpickler(unpickler(decisions, enforces=policy.enforces))
    logger.info(
        "the guard of RPC worker %r %s %s (sha256 %s)",
        worker,
        "enforces" if policy.enforces else "only logs beyond",
        policy.source,
        policy.digest or "none",
    )
    return agent


def learn(agent: Any, folder: str) -> Any:
    """Make an agent that has not started yet write what its peers ask for.

    :returns: the agent.
    :raises PolicyError: the folder cannot be written.
    """
    worker = agent.get_worker_info().name
    audit = learning.open_record(folder, worker)
    inner = _native(agent)
    native = learning.native_policy(audit, worker)
    if inner is not None:
        inner.set_policy(native)
    torch_internals.set_unpickler(learning.unpickler(audit, native, is_partial=inner is None))
    return agent


def stop() -> None:
    """Unpickle as torch does, in groups that start from now on."""
    describe_guard("")
    torch_internals.set_unpickler(None)


def _unknown(policy: Policy, worker: str) -> list[str]:
    """Return a line for each entry for which this worker has nothing."""
    named = [
        (name, key)
        for rule in policy.rules
        for key in ("functions", "methods", "references", "operators")
        for name in getattr(rule, key)
    ]
    named += [(name, "types") for name in policy.types if not name.startswith(f"{names.INTERNAL}:")]
    problems = []
    for name, key in dict.fromkeys(named):
        try:
            if key == "operators":
                _find_operator(name)
            else:
                resolve(name)
        except Exception as error:  # a module may raise any when it is imported
            problems.append(
                f"{place(policy, name)}: {name!r} in {key!r} names what worker {worker!r} does not have: "
                f"{error}. Correct the name, or remove it."
            )
    return problems


def _find_operator(name: str) -> None:
    operator, _, overload = name.partition(".")
    overloads = torch_internals.overloads(operator)
    if not overloads:
        raise LookupError("torch has no such operator")
    if overload and overload not in overloads:
        known = ", ".join(filter(None, overloads))
        raise LookupError(
            f"the operator has no such overload; it has {known or 'none with a name'}"
        )


def _proves_names(agent: Any) -> bool:
    """Return whether the names of this agent's peers are those that their certificates prove."""
    return getattr(getattr(agent, "transport", None), "signer", None) is not None


def _native(agent: Any) -> Any:
    """Return the agent in C++ that decides requests; None if the backend has another one."""
    while type(agent).__name__.startswith("Intercepting") and "inner" in vars(agent):
        agent = agent.inner
    return agent if isinstance(agent, TransportAgent) else None


def unpickler(
    decisions: Decisions,
    *,
    enforces: bool,
    admit: Callable[[bytes], tuple[bool, str | None]] | None = None,
) -> Callable[[Any], Any]:
    """Return what torch makes an unpickler with: it is called with the file of a message.

    Most messages are plain values or calls with such. Each function of Python that they pass is felt.

    :param admit: returns whether nothing is left to decide about a message, and who has sent it if it is
        a call: "" for this worker, and None for a result, and for any message of a backend that does not
        tell who calls. None for what the agent says.
    """
    admit = admit or decisions.native.admit
    loads, load = pickle.loads, pickle.Unpickler.load
    calls: dict[tuple[str, ...], Any] = {
        (module, name): value
        for module, kinds in torch_internals.names_in_calls().items()
        for name, value in kinds.items()
    }
    calls |= {tuple(name.split(":")): value for name, value in decisions.functions.items()}

    class DecidedCall(pickle.Unpickler):
        """Unpickles a call that names only a listed function, and calls only torch's classes."""

        __slots__ = ("caller", "data")
        caller: str
        data: bytes

        def find_class(self, module: str, name: str) -> Any:
            return calls[module, name]

        def load(self) -> Any:
            """Return the call.

            :raises GuardError: it cannot be unpickled.
            """
            try:
                return load(self)
            except Exception as error:
                logger.debug("a call is decided again: %r", error)
            return Guarded(self.data, self.caller).load()

    class DecidedResult:
        """Unpickles a result that names nothing but torch's functions that make tensors."""

        __slots__ = ("data",)
        data: bytes

        def load(self) -> Any:
            """Return the result.

            :raises GuardError: it cannot be unpickled.
            """
            try:
                return loads(self.data)
            except Exception as error:
                logger.debug("a result is decided again: %r", error)
            return Guarded(self.data, None).load()

    class Guarded:
        """Unpickles any message."""

        __slots__ = ("_caller", "_data")

        def __init__(self, data: bytes, caller: str | None) -> None:
            self._data = data
            self._caller = caller

        def load(self) -> Any:
            """Return the message.

            :raises GuardError: the policy does not permit it.
            """
            rrefs: dict[Any, Any] = {}
            try:
                if self._caller is None:
                    return decisions.result(self._data, rrefs)
                return decisions.call(self._data, self._caller, rrefs)
            except GuardError:
                if enforces:
                    raise
            return AgainUnpickler(self._data, rrefs).load()

    def guarded(file: Any) -> Any:
        data = file.getvalue()
        is_decided, caller = admit(data)
        if not is_decided:
            # What this worker sends to itself is not decided.
            return pickle.Unpickler(file) if caller == "" else Guarded(data, caller)
        if caller is None:
            result = DecidedResult()
            result.data = data
            return result
        call = DecidedCall(file)
        call.data = data
        call.caller = caller
        return call

    return guarded
