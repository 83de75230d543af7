"""Learns a policy: workers write what their peers ask for, and the command makes rules of that."""

from __future__ import annotations

import gc
import json
import os
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpc_backends_guard.policy import ENTRIES, EVERY, Policy, PolicyError, Rule

if TYPE_CHECKING:
    from rpc_backends_agents import RequestPolicy

#: The lists of a rule that a record has entries for, and `types`.
KINDS = ("functions", "methods", "references", "operators", "scripts", "requests")
_SUFFIX = ".seen.jsonl"
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict})


def open_record(folder: str, worker: str) -> Any:
    """Open the record of a worker.

    :raises PolicyError: the folder cannot be written.
    """
    from rpc_backends_guard.audit import Audit

    return Audit(Path(folder) / f"{worker}-{os.getpid()}{_SUFFIX}", worker)


def native_policy(record: Any, worker: str) -> RequestPolicy:
    """Return the part of learning that is done in C++: it permits all, and writes what it sees."""
    from rpc_backends_agents import RequestPolicy

    return RequestPolicy([], worker=worker, refuses=False, learns=True, log=record.duplicate())


def unpickler(record: Any, native: RequestPolicy, *, is_partial: bool) -> Callable[[Any], Any]:
    """Return what unpickles as pickle does, and records what the pickles name."""
    from rpc_backends_agents import take_caller

    noted: set[tuple[Any, ...]] = set()

    def note(peer: str | None, kind: str, name: str) -> None:
        if (peer, kind, name) not in noted:
            noted.add((peer, kind, name))
            record.write("seen", peer, kind, name)

    class Recording:
        """Unpickles one message."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def load(self) -> Any:
            """Return the message."""
            caller = take_caller()
            problem = native.pickle_problem(self._file.getvalue())
            unpickling = _Naming(self._file)
            value = unpickling.load()
            if caller == "":  # what this worker sends to itself
                return value
            if not problem:
                problem = _never_permitted(self._file.getvalue(), unpickling.named)
            if problem:
                note(caller, "message", problem)
            return _note_all(unpickling, value, caller, note, is_partial)

    return Recording


class _Naming(pickle.Unpickler):
    """Unpickles, and keeps what the pickle names."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.named: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        value = super().find_class(module, name)
        self.named[f"{module}:{name}"] = _attribute(self.named) if value is getattr else value
        return self.named[f"{module}:{name}"]


def _attribute(named: dict[str, Any]) -> Callable[[Any, str], Any]:
    def get(of: Any, name: str) -> Any:
        value = getattr(of, name)
        for owner, known in list(named.items()):
            if known is of:
                named[f"{owner}.{name}"] = value
        return value

    return get


def _never_permitted(data: bytes, named: Iterable[str]) -> str:
    from rpc_backends_guard import names, unpickling

    others = {
        name for name in named if not name.startswith(names.INTERNAL) and name != "builtins:getattr"
    } - names.plain_types().keys()
    return unpickling.never_permitted(data, others) if others else ""


def _note_all(
    unpickling: _Naming,
    value: Any,
    caller: str | None,
    note: Callable[[str | None, str, str], None],
    is_partial: bool,
) -> Any:
    from rpc_backends_core.spi import torch_internals
    from rpc_backends_guard import names

    own = {
        *names.constants(),
        *names.plain_types(),
        "builtins:getattr",
        *(f"{names.INTERNAL}:{kind}" for kind in torch_internals.pickled_classes()),
    }
    left = {name: real for name, real in unpickling.named.items() if name not in own}

    def take(wanted: Any) -> str | None:
        """Return the name of a function or class that the pickle names, and do not note it as a type."""
        matching = [name for name, real in left.items() if real is wanted]
        for name in matching:
            left.pop(name)
        owners = [name for name in left if any(match.startswith(f"{name}.") for match in matching)]
        for name in owners:
            left.pop(name)
        return names.canonical(matching[-1]) if matching else None

    parts = torch_internals.call_parts(value)
    receivers = f"{names.INTERNAL}:_InternalRPCPickler"
    scripts = f"{receivers}._script_module_receiver"
    for name in [name for name in left if name.startswith(receivers) and name != scripts]:
        left.pop(name)
    if parts is not None and (caller is not None or is_partial):
        function, arguments, keywords = parts
        called = take(function)
        passed = [*arguments, *keywords.values()]
        if called in names.INVOKES:
            passed += [*arguments[2], *arguments[3].values()]
            value = torch_internals.python_call(
                _Noted(function, arguments[1], caller, note), arguments, keywords
            )
        elif called == names.FORWARDS:
            value = torch_internals.python_call(
                _Noted(function, "forward", caller, note), arguments, keywords
            )
        elif called not in {names.TYPE_OF, names.GATHERS, names.BROADCASTS, None}:
            note(caller, "functions", str(called))
        callables, kinds = _inside(passed, {id(real) for real in unpickling.named.values()})
        for argument in callables:
            matching = [name for name, real in unpickling.named.items() if real is argument]
            is_made = argument in kinds  # then it is one of the types, too
            note(caller, "references", names.canonical(matching[-1]))
            if not is_made:
                take(argument)
    elif torch_internals.is_remote_exception(value):
        take(value.exception_type)
    elif isinstance(value, type):
        take(value)  # the class of an RRef's value, which `methods` lists
    for name in left:
        note(None, "types", name)
    return value


def _inside(values: list[Any], named: set[int]) -> tuple[list[Any], set[Any]]:
    """Return the functions and classes that values hold, and the classes of the objects that they hold.

    :param named: the ids of what the pickle has named.
    """
    callables: dict[int, Any] = {}
    kinds: set[Any] = set()
    seen: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if callable(value) and id(value) in named:
            callables[id(value)] = value
        elif id(type(value)) in named or type(value) in _CONTAINERS:
            kinds.add(type(value))
            stack += [each for each in gc.get_referents(value) if each is not type(value)]
    return list(callables.values()), kinds


class _Noted:
    """Calls one of torch's functions that call a method, and notes the method of the value's class."""

    def __init__(
        self,
        function: Any,
        method: str,
        caller: str | None,
        note: Callable[[str | None, str, str], None],
    ) -> None:
        self._function = function
        self._method = method
        self._caller = caller
        self._note = note

    def __call__(self, rref: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        kind = type(rref.local_value())
        name = f"{kind.__module__}:{kind.__qualname__}.{self._method}"
        self._note(self._caller, "methods", name)
        return self._function(rref, *arguments, **keywords)


# --- from records to a policy -------------------------------------------------------------------------


def merge(folder: Path, warn: Callable[[str], object]) -> Policy:
    """Return the smallest policy that permits what the records of a folder have.

    :param warn: gets a text for each call that no policy can permit.
    :raises PolicyError: there is no record, or one cannot be read.
    """
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    if not files:
        raise PolicyError(
            "the program has started no RPC worker, so there is nothing to learn. Check that it calls "
            "init_rpc, and that rpc-backends-guard is installed where it runs."
        )
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    types: set[str] = set()
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
                kind, name, peer = record["kind"], record["name"], record["peer"]
            except (ValueError, KeyError) as error:
                raise PolicyError(
                    f"the record {file} has a line that is not valid: {line!r}"
                ) from error
            if kind == "types":
                types.add(name)
            elif kind in KINDS and not ENTRIES[kind][0].fullmatch(name):
                warn(
                    f"{file.name.removesuffix(_SUFFIX)} got a call from {peer} that no policy can "
                    f"permit, and the policy leaves it out: {kind}: {name}"
                )
            elif kind == "message":
                warn(
                    f"{file.name.removesuffix(_SUFFIX)} got a message of {peer or 'another worker'} that "
                    f"the guard refuses, whatever the policy lists: {name}"
                )
            elif kind in KINDS:
                seen[peer or EVERY][kind].add(name)
    rules: dict[tuple[tuple[str, ...], ...], list[str]] = defaultdict(list)
    for peer, lists in sorted(seen.items()):
        rules[tuple(tuple(sorted(lists[kind])) for kind in KINDS)].append(peer)
    return Policy(
        rules=tuple(
            Rule(tuple(peers), **dict(zip(KINDS, lists, strict=True)))
            for lists, peers in rules.items()
        ),
        types=tuple(sorted(types)),
    )


def toml(policy: Policy, comment: str) -> str:
    """Return a policy as TOML, with comments."""
    lines = [
        f"# {comment}",
        "# Read it before you use it: `rpc-backends guard check` explains it.",
        "",
    ]
    lines += ["version = 1", 'mode = "enforce"', ""]
    if policy.types:
        lines.append("# Classes of arguments and results. A message may make objects of them.")
        lines += _list("types", policy.types)
        lines.append("")
    for rule in policy.rules:
        lines.append("[[rule]]")
        lines += _list("peers", rule.peers)
        for kind in KINDS:
            entries = getattr(rule, kind)
            if entries:
                lines += _list(kind, entries)
        lines.append("")
    return "\n".join(lines)


def _list(key: str, entries: Iterable[str]) -> list[str]:
    return [f"{key} = [", *(f'    "{entry}",' for entry in entries), "]"]


def missing(wanted: Policy, policy: Policy) -> list[str]:
    """Return what ``wanted`` permits and ``policy`` does not, a line for each entry."""
    lines = [f"types: {name}" for name in wanted.types if name not in policy.types]
    for rule in wanted.rules:
        for peer in rule.peers:
            permitted = policy.rules_for(None if peer == EVERY else peer)
            for kind in KINDS:
                have = {
                    entry for permitted_rule in permitted for entry in getattr(permitted_rule, kind)
                }
                if kind == "operators":
                    lines += [
                        f"{kind} of {peer}: {entry}"
                        for entry in rule.operators
                        if entry not in have and entry.partition(".")[0] not in have
                    ]
                else:
                    lines += [
                        f"{kind} of {peer}: {entry}"
                        for entry in getattr(rule, kind)
                        if entry not in have
                    ]
    return lines
