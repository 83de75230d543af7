"""Decides calls of Python functions, and results, when they have been unpickled and nothing has run."""

from __future__ import annotations

from typing import Any

from torch.distributed import rpc

from rpc_backends_agents import RequestPolicy, RequestRule
from rpc_backends_core.spi import torch_internals
from rpc_backends_guard import gathers, names
from rpc_backends_guard.audit import Audit
from rpc_backends_guard.policy import EVERY, Policy, Rule
from rpc_backends_guard.presence import Presence
from rpc_backends_guard.unpickling import (
    GuardError,
    Names,
    Unpickled,
    name_of,
    resolve,
    unpickle,
)

#: What the positional arguments of a call may be; torch sends what the program has passed.
_SEQUENCES = frozenset({tuple, list})


def _shown(peer: str | None) -> str:
    return repr(peer) if peer else "another worker"


def _answering() -> str | None:
    """Return the worker whose result this thread unpickles; None if the backend does not tell."""
    if not torch_internals.has_current_agent():
        return None
    answering = getattr(torch_internals.current_agent(), "answering_worker", None)
    return (answering and answering()) or None


def _native_rule(rule: Rule) -> RequestRule:
    conditional = [names.GATHERS, names.BROADCASTS]
    if rule.methods:
        conditional += [*names.INVOKES, names.TYPE_OF, names.FORWARDS]
    return RequestRule(
        peers=list(rule.peers),
        functions=list(rule.functions),
        conditional=conditional,
        operators=list(rule.operators),
        scripts=list(rule.scripts),
        fetch="fetch" in rule.requests,
        autograd="autograd" in rule.requests,
        profiling="profiling" in rule.requests,
    )


class Permissions:
    """The rules for one worker, together."""

    def __init__(self, rules: list[Rule]) -> None:
        self.functions = frozenset(name for rule in rules for name in rule.functions)
        self.methods = frozenset(name for rule in rules for name in rule.methods)
        self.references = {name: resolve(name) for rule in rules for name in rule.references}

    def find_reference(self, name: str) -> Any:
        """Return the function or class that an argument is.

        :raises GuardError: it is not listed.
        """
        name = names.canonical(name)
        permitted = None if name in names.NEVER_PASSED else self.references.get(name)
        if permitted is None:
            raise GuardError(f"`references` does not list {name!r}", "references", name)
        return permitted


class Decisions:
    """Decides what this worker unpickles.

    :param worker: the name of this worker.
    :param is_partial: whether the backend does not tell who calls.
    :param threads: how many requests this worker serves at a time.
    :raises ImportError: the policy names a module that this worker does not have.
    :raises AttributeError: a module lacks what the policy names.
    """

    def __init__(
        self, policy: Policy, worker: str, audit: Audit, *, is_partial: bool, threads: int = 16
    ) -> None:
        self._policy = policy
        self._rules = (Rule((EVERY,)), *policy.rules)  # with what torch itself calls
        #: The part of the policy that is decided in C++.
        self.native = RequestPolicy(
            [_native_rule(rule) for rule in self._rules],
            worker=worker,
            refuses=policy.enforces,
            learns=False,
            log=audit.duplicate(),
            depth=policy.max_depth,
            bytes=policy.max_bytes,
            keys=policy.max_keys,
        )
        self._worker = worker
        self._audit = audit
        self._is_partial = is_partial
        self._presence = Presence(threads)
        self._of_calls = Names(policy.types, with_call=True)
        self._of_results = Names(policy.types, with_call=is_partial)
        self._permissions: dict[str | None, Permissions] = {}
        #: What the policy lists in `functions`, by name.
        self.functions = {name: resolve(name) for rule in policy.rules for name in rule.functions}
        # A result may be a class whose methods are called through an RRef, or an exception's class.
        classes = {name.rpartition(".")[0] for rule in policy.rules for name in rule.methods}
        listed = classes | {name for rule in policy.rules for name in rule.references}
        types = {name for name in policy.types if not name.startswith(f"{names.INTERNAL}:")}
        self._in_results = {name: resolve(name) for name in listed | types} | names.exceptions()

    def call(self, data: bytes, peer: str | None, rrefs: dict[Any, Any]) -> Any:
        """Return a call that torch may run.

        :param rrefs: gets the RRefs that the call brings, by what was sent for them.
        :raises GuardError: the policy does not permit it.
        """
        try:
            return self._decide(self._unpickle(data, self._of_calls, rrefs), peer)
        except GuardError as error:
            raise self._refused_call(error, peer) from None

    def result(self, data: bytes, rrefs: dict[Any, Any]) -> Any:
        """Return a result, or the exception of a called function.

        :param rrefs: gets the RRefs that the result brings, by what was sent for them.
        :raises GuardError: the policy does not permit it.
        """
        try:
            unpickled = self._unpickle(data, self._of_results, rrefs)
            if not self._is_partial or torch_internals.call_parts(unpickled.value) is None:
                return self._decide_result(unpickled)
        except GuardError as error:
            peer = _answering()
            text = (
                f"worker {self._worker!r} refuses a result of {_shown(peer)}, by its guard "
                f"policy: {error}"
            )
            raise self._refused(error, peer, text, of_result=True) from None
        try:
            return self._decide(unpickled, None)
        except GuardError as error:
            raise self._refused_call(error, None) from None

    def _unpickle(self, data: bytes, known: Names, rrefs: dict[Any, Any]) -> Unpickled:
        return unpickle(data, known, self.native.pickle_problem(data), rrefs)

    def _decide_result(self, unpickled: Unpickled) -> Any:
        value = unpickled.value
        if torch_internals.is_remote_exception(value):
            return self._exception(unpickled)
        value = unpickled.place(value, self._find_in_result)
        unpickled.check_all_placed()
        # Torch calls what has these attributes, if it takes this value for a request.
        if all(hasattr(value, name) for name in ("func", "args", "kwargs")):
            raise GuardError("it has the form of a call")
        return value

    def _of(self, peer: str | None) -> Permissions:
        if peer is None:  # the backend does not tell
            rules = self._policy.rules_for(None)
        else:
            rules = [self._rules[number] for number in self.native.rules_for(peer)]
        known = self._permissions[peer] = Permissions(rules)
        return known

    def _refused_call(self, error: GuardError, peer: str | None) -> GuardError:
        text = f"worker {self._worker!r} refuses a call of {_shown(peer)}: {error}"
        return self._refused(error, peer, text)

    def _refused(
        self, error: GuardError, peer: str | None, text: str, *, of_result: bool = False
    ) -> GuardError:
        event = "refused" if self._policy.enforces else "would refuse"
        self._audit.write(event, peer, error.kind, error.name, text=str(error)[:512])
        return GuardError(text, error.kind, error.name, of_result=of_result)

    def _decide(self, unpickled: Unpickled, peer: str | None) -> Any:
        rules = self._permissions.get(peer) or self._of(peer)
        parts = torch_internals.call_parts(unpickled.value)
        if parts is None:
            raise GuardError("it is no call of a function")
        function, arguments, keywords = parts
        name = name_of(function)
        unpickled.place_function(function)
        if name is None:
            raise GuardError("it calls a value that it has made, which is not a function")
        if type(arguments) not in _SEQUENCES or type(keywords) is not dict:
            raise GuardError(
                f"the arguments of its call of {name!r} are no tuple or list and a dict"
            )
        arguments = tuple(arguments)
        if keywords and not all(type(keyword) is str for keyword in keywords):
            raise GuardError("a keyword of the call is not a text")
        if name in names.INVOKES and name not in rules.functions:
            return self._method(unpickled, rules, arguments, keywords, peer)
        real = self._function(name, rules, arguments, keywords, peer)
        arguments = unpickled.place_all(arguments, rules.find_reference)
        if keywords:
            find = rules.find_reference
            keywords = {key: unpickled.place(value, find) for key, value in keywords.items()}
        unpickled.check_all_placed()
        return torch_internals.python_call(real, arguments, keywords)

    def _function(
        self,
        name: str,
        rules: Permissions,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        peer: str | None,
    ) -> Any:
        if name in rules.functions:
            return self.functions[name]
        if name == names.FORWARDS:
            return Forward(Methods(rules.methods, peer, self), resolve(name))
        if name == names.TYPE_OF and rules.methods:
            if not arguments or type(arguments[0]) is not rpc.PyRRef:
                raise GuardError("it asks for the class of what is no RRef", "functions", name)
            return TypeOf(Methods(rules.methods, peer, self), resolve(name))
        if name in (names.GATHERS, names.BROADCASTS):
            check = gathers.check_arrival if name == names.GATHERS else gathers.check_announcement
            problem = check(arguments, keywords, self._worker, peer)
            if problem:
                raise GuardError(problem, "functions", name)
            return resolve(name)
        raise GuardError(
            f"its guard policy does not list {name!r} in `functions`", "functions", name
        )

    def _method(
        self,
        unpickled: Unpickled,
        rules: Permissions,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        peer: str | None,
    ) -> Any:
        """Return a call of a method through an RRef; the class is known when the method is called."""
        if len(arguments) != 4 or keywords:
            raise GuardError("it calls a method of an RRef in another form than torch's")
        rref, method, positional, named = arguments
        if (
            type(rref) is not rpc.PyRRef
            or type(method) is not str
            or type(positional) is not tuple
            or type(named) is not dict
        ):
            raise GuardError("it calls a method of an RRef in another form than torch's")
        if not rules.methods:
            raise GuardError(
                f"its guard policy lists no method {method!r} in `methods`", "methods", method
            )
        positional = unpickled.place_all(positional, rules.find_reference)
        named = {key: unpickled.place(value, rules.find_reference) for key, value in named.items()}
        unpickled.check_all_placed()
        return torch_internals.python_call(
            Invocation(Methods(rules.methods, peer, self), method), (rref, *positional), named
        )

    def _exception(self, unpickled: Unpickled) -> Any:
        """Return the exception of a called function; of a type that is not listed, with its text only."""
        text, kind = unpickled.value
        if type(text) is not str:
            raise GuardError("it is an exception without a text")
        real = unpickled.place(kind, self._in_results.get)
        unpickled.check_all_placed()
        if not isinstance(real, type) or not issubclass(real, Exception):
            self._audit.write("without type", _answering(), "types", str(name_of(kind)))
            real = RuntimeError
        return torch_internals.remote_exception(text, real)

    def _find_in_result(self, name: str) -> Any:
        permitted = self._in_results.get(names.canonical(name))
        if permitted is None or name in names.NEVER_PASSED:
            raise GuardError(f"`types` does not list {name!r}", "types", name)
        return permitted

    def check_present(self, rref: Any, peer: str | None) -> None:
        """Wait for the value of an RRef, and refuse one that gets none."""
        if not rref.is_owner() or self._presence.wait(rref, peer):
            return
        self._refuse_later(
            GuardError(
                "it uses an RRef that this worker has no value for, and has got none in time"
            ),
            peer,
        )

    def check_method(
        self, methods: frozenset[str], value: Any, method: str, peer: str | None
    ) -> None:
        """Refuse a method that is not listed for exactly the class of an RRef's value."""
        kind = type(value)
        name = f"{kind.__module__}:{kind.__qualname__}.{method}"
        if name not in methods:
            text = f"its guard policy does not list {name!r} in `methods`"
            self._refuse_later(GuardError(text, "methods", name), peer)

    def _refuse_later(self, error: GuardError, peer: str | None) -> None:
        """Refuse a call that torch runs already."""
        refused = self._refused_call(error, peer)
        if self._policy.enforces:
            raise refused


class Methods:
    """The methods that a peer may call through RRefs.

    :param peer: None for a worker whose name the backend does not tell.
    """

    def __init__(self, methods: frozenset[str], peer: str | None, decisions: Decisions) -> None:
        self._methods = methods
        self._peer = peer
        self._decisions = decisions

    def wait(self, rref: Any) -> None:
        """Wait until the value of an RRef is there.

        :raises GuardError: it is not there in time.
        """
        self._decisions.check_present(rref, self._peer)

    def value(self, rref: Any, method: str) -> Any:
        """Return the value of an RRef, of which a method is called.

        :raises GuardError: it is not there in time, or the method is not listed for its class.
        """
        self.wait(rref)
        value = rref.local_value()
        self._decisions.check_method(self._methods, value, method, self._peer)
        return value


class Invocation:
    """Calls a method of an RRef's value if it is listed for the value's class."""

    def __init__(self, methods: Methods, method: str) -> None:
        self._methods = methods
        self._method = method

    def __call__(self, rref: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the method."""
        value = self._methods.value(rref, self._method)
        return getattr(value, self._method)(*arguments, **keywords)


class Forward:
    """Calls torch's function that calls `forward` of an RRef's value, if that is listed."""

    def __init__(self, methods: Methods, function: Any) -> None:
        self._methods = methods
        self._function = function

    def __call__(self, rref: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        if type(rref) is not rpc.PyRRef:  # anything else may have a local_value() of its own
            raise GuardError("it calls `forward` of what is no RRef")
        self._methods.value(rref, "forward")
        return self._function(rref, *arguments, **keywords)


class TypeOf:
    """Calls torch's function that returns the class of an RRef's value."""

    def __init__(self, methods: Methods, function: Any) -> None:
        self._methods = methods
        self._function = function

    def __call__(self, rref: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        self._methods.wait(rref)
        return self._function(rref, *arguments, **keywords)
