"""Policies: which workers may ask for what. A policy that is not understood to the letter is refused."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

#: The version of the format.
VERSION = 1
#: What `requests` may list: values of RRefs, distributed autograd, calls that switch a profiler on.
REQUESTS = ("fetch", "autograd", "profiling")
#: The entry that means every worker.
EVERY = "*"

_TOP = (
    "version",
    "mode",
    "audit",
    "allow_partial",
    "require_guard",
    "same_policy",
    "max_depth",
    "max_bytes",
    "max_keys",
    "types",
    "roles",
    "identities",
    "revoked",
    "rule",
)
#: What a policy made in Python does not share with an equal one of another worker.
_OF_FILE = ("audit", "source", "file", "digest")
_MODES = ("enforce", "warn")
_PATTERN = re.compile(r"[A-Za-z0-9_:*-]+")
_ROLE = re.compile(r"@[A-Za-z0-9_-]+")
#: Identities in certificates (DNS names and URIs), names of workers, and numbers of certificates.
_IDENTITY = re.compile(r"[A-Za-z0-9_:/.%~*-]+")
_REVOKED = re.compile(r"[A-Za-z0-9_:/.%~-]+")
#: MODULE:QUALNAME, as in entry points.
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_OPERATOR = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_SCRIPT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class PolicyError(ValueError):
    """A policy that cannot be honoured to the letter; the text has a line for each problem."""


@dataclass(frozen=True)
class Rule:
    """What some workers may ask for. Names of Python are MODULE:QUALNAME, and exact.

    :ivar peers: names of workers, in which ``*`` stands for any characters.
    :ivar functions: what they may call; a class's name permits to make objects of it.
    :ivar methods: MODULE:CLASS.METHOD, what they may call through RRefs of objects of exactly this class.
    :ivar references: functions and classes that they may pass as arguments.
    :ivar operators: NAMESPACE::NAME, or NAMESPACE::NAME.OVERLOAD for one overload.
    :ivar scripts: qualified names of TorchScript functions.
    :ivar requests: of :data:`REQUESTS`.
    """

    peers: tuple[str, ...]
    functions: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()


#: What an entry of each list of a rule looks like, and an example for errors.
ENTRIES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "peers": (
        re.compile(f"{_PATTERN.pattern}|{_ROLE.pattern}"),
        "'trainer*' or '@trainers', a role",
    ),
    "functions": (_NAME, "'package.module:function'"),
    "methods": (re.compile(_NAME.pattern + r"\.[A-Za-z_]\w*"), "'package.module:Class.method'"),
    "references": (_NAME, "'package.module:function'"),
    "operators": (_OPERATOR, "'aten::add' or 'aten::add.Tensor'"),
    "scripts": (_SCRIPT, "'__torch__.module.function'"),
    "requests": (re.compile("|".join(REQUESTS)), " or ".join(map(repr, REQUESTS))),
}


def _is_switch(value: Any) -> bool:
    return type(value) is bool


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_path(value: Any) -> bool:
    return value is None or isinstance(value, Path)


_SWITCH = (_is_switch, "True or False")
_COUNT = (_is_positive, "a whole number above 0")
#: What the fields of a policy that are no lists must be.
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("enforces", "allow_partial", "require_guard", "same_policy"), _SWITCH),
    **dict.fromkeys(("max_depth", "max_bytes", "max_keys"), _COUNT),
    "audit": (_is_path, "a pathlib.Path or None"),
}


def _problems_of_list(
    name: str, value: Any, pattern: re.Pattern[str], example: str
) -> Iterator[str]:
    """Return what is wrong with a list of entries that a program has made."""
    if type(value) not in (tuple, list):  # a text would be taken for a list of letters
        yield f"{name} is {value!r}; it must be a tuple of texts; an entry is {example}."
        return
    for entry in value:
        if not isinstance(entry, str) or not pattern.fullmatch(entry) or entry[:1] == "@":
            yield f"{name} has {entry!r}; an entry is {example}."


def _problems_of_rules(rules: Any) -> Iterator[str]:
    if type(rules) not in (tuple, list):
        yield f"rules is {rules!r}; it must be a tuple of Rule."
        return
    for number, rule in enumerate(rules, 1):
        if not isinstance(rule, Rule):
            yield f"rule {number} is {rule!r}; it must be a Rule."
            continue
        for name, (pattern, example) in ENTRIES.items():
            for problem in _problems_of_list(name, getattr(rule, name), pattern, example):
                yield f"in rule {number}, {problem}"
        if not rule.peers:
            yield f"peers is empty in rule {number}; list the workers that it is for."


def _problems_of_identities(value: Any) -> Iterator[str]:
    if type(value) not in (tuple, list) or not all(
        type(entry) in (tuple, list) and len(entry) == 2 for entry in value
    ):
        yield (
            f"identities is {value!r}; it must be a tuple of pairs, such as "
            "('spiffe://example.org/trainer', ('trainer*',))."
        )
        return
    for identity, patterns in value:
        if not isinstance(identity, str) or not _IDENTITY.fullmatch(identity):
            yield f"identities has {identity!r}; one is 'spiffe://example.org/trainer'."
        yield from _problems_of_list(f"identity {identity!r}", patterns, _PATTERN, "'trainer*'")


@dataclass(frozen=True)
class Policy:
    """Which workers may ask for what.

    :ivar rules: what a worker may do is the sum of the rules for it.
    :ivar types: classes of which arguments and results may consist, and functions that rebuild such
        objects. A pickle may call each of them with any arguments.
    :ivar enforces: False to log what is not listed, and to let it through.
    :ivar identities: pairs of a pattern of identities in certificates, and patterns of names. A worker
        has a name only if its certificate matches each entry for this name.
    :ivar revoked: identities, names of workers, and serial numbers of certificates (hexadecimal).
    :ivar audit: the file to which refusals are written as JSON lines; None for none.
    :ivar allow_partial: whether to start on a backend on which only Python is guarded.
    :ivar require_guard: whether the group forms only if all members have a guard.
    :ivar same_policy: whether it forms only if all have this policy.
    :ivar max_depth: of values inside values of a message.
    :ivar max_bytes: that the values of a message may take, without tensors.
    :ivar max_keys: that the dicts and sets of a message may have, without texts, bytes and short numbers:
        a sender can choose others with equal hashes, and the time that they take grows with the square.
    :ivar source: where the policy is from, for texts.
    :ivar file: the file that it was read from, of which running workers read `revoked` again; None for a
        policy made in Python.
    :ivar digest: the SHA-256 of the file, or of the values of a policy made in Python.
    """

    rules: tuple[Rule, ...]
    types: tuple[str, ...] = ()
    identities: tuple[tuple[str, tuple[str, ...]], ...] = ()
    revoked: tuple[str, ...] = ()
    enforces: bool = True
    audit: Path | None = None
    allow_partial: bool = False
    require_guard: bool = False
    same_policy: bool = False
    max_depth: int = 100
    max_bytes: int = 256 << 20
    max_keys: int = 4096
    source: str = "the program"
    file: Path | None = field(default=None, compare=False)
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check a policy made in Python as strictly as a file.

        :raises PolicyError: a value has another type than its field, or an entry another form.
        """
        problems = [
            *(
                f"{name} is {getattr(self, name)!r}; it must be {wanted}."
                for name, (is_good, wanted) in _FIELDS.items()
                if not is_good(getattr(self, name))
            ),
            *_problems_of_list("types", self.types, _NAME, "'package.module:Class'"),
            *_problems_of_list("revoked", self.revoked, _REVOKED, "'trainer0' or '0a:1b'"),
            *_problems_of_rules(self.rules),
            *_problems_of_identities(self.identities),
        ]
        problems = [f"{self.source}: {problem}" for problem in problems]
        if self.same_policy and not self.require_guard:
            problems.append(f"{self.source}: same_policy asks for require_guard=True.")
        if problems:
            raise PolicyError("\n".join(problems))
        if not self.digest:  # of a policy made in Python
            values = [
                getattr(self, each.name) for each in fields(self) if each.name not in _OF_FILE
            ]
            object.__setattr__(self, "digest", hashlib.sha256(repr(values).encode()).hexdigest())

    @property
    def size(self) -> str:
        """How many rules there are, in words."""
        return "1 rule" if len(self.rules) == 1 else f"{len(self.rules)} rules"

    def rules_for(self, peer: str | None) -> list[Rule]:
        """Return the rules for a worker; None is a worker whose name the backend does not tell."""
        if peer is None:
            return [rule for rule in self.rules if EVERY in rule.peers]
        return [
            rule for rule in self.rules if any(matches(pattern, peer) for pattern in rule.peers)
        ]


def matches(pattern: str, name: str) -> bool:
    """Return whether a worker's name matches; ``*`` stands for any characters."""
    return fnmatch.fnmatchcase(name, pattern)  # patterns have none of its other characters


def read(path: str | Path) -> Policy:
    """Read a policy file.

    :raises PolicyError: it cannot be read, or not honoured to the letter.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        parsed = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise PolicyError(f"the guard policy {file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also of decoding
        raise PolicyError(f"the guard policy {file} is not TOML: {error}") from error
    return _Reader(file, data.decode("utf-8")).policy(parsed, hashlib.sha256(data).hexdigest())


def place(policy: Policy, entry: str) -> str:
    """Return file and line of an entry, or where the policy is from if it has none."""
    try:
        lines = Path(policy.source).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # made in Python, or removed
        return policy.source
    return _place(policy.source, lines, entry)


def _wrong(name: str, entry: Any, pattern: re.Pattern[str], example: str) -> str:
    """Return what is wrong with an entry of a list, and what to write."""
    if not isinstance(entry, str):
        return f"is {entry!r}; an entry is {example}"
    if "*" in entry and (name == "types" or (name in ENTRIES and name != "peers")):
        return "has a '*', which only names of workers may have; list each name in full"
    module, _, last = entry.rpartition(".")
    for guess in (f"{module}:{last}", f"aten::{re.split('[.:]', entry)[-1]}"):
        if pattern.fullmatch(guess):
            return f"is not written as {example}; did you mean {guess!r}?"
    return f"is not written as {example}"


def _place(file: str, lines: list[str], key: str) -> str:
    word = re.compile(rf"(?<![\w.:*@]){re.escape(key)}(?![\w.:*])")
    line = next((n for n, text in enumerate(lines, 1) if word.search(text)), None)
    return f"{file}:{line}" if line else file


class _Reader:
    """Checks a parsed file, and collects all problems with their lines."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._lines = text.splitlines()
        self._problems: list[str] = []

    def policy(self, parsed: dict[str, Any], digest: str) -> Policy:
        self._known(parsed, _TOP, "the policy")
        if "version" not in parsed:
            self._problem("version", f"is missing; begin the policy with version = {VERSION}")
        elif parsed["version"] != VERSION or type(parsed["version"]) is not int:
            self._problem("version", f"is {parsed['version']!r}; it must be {VERSION}")
        mode = self._value(parsed, "mode", str, "enforce")
        if mode not in _MODES:
            self._problem("mode", f"is {mode!r}; it must be {' or '.join(map(repr, _MODES))}")
        audit = self._value(parsed, "audit", str, f"{self._file.stem}.audit.jsonl")
        roles = self._roles(self._value(parsed, "roles", dict, {}))
        rules = tuple(
            self._rule(number, table, roles) for number, table in enumerate(self._rules(parsed), 1)
        )
        types = self._names(parsed, "types", _NAME, "'package.module:Class'", "the policy")
        identities = self._identities(self._value(parsed, "identities", dict, {}), roles)
        revoked = self._names(parsed, "revoked", _REVOKED, "'trainer0' or '0a:1b'", "the policy")
        limits = {
            name: self._positive(parsed, name) for name in ("max_depth", "max_bytes", "max_keys")
        }
        switches = {
            name: self._value(parsed, name, bool, False)
            for name in ("allow_partial", "require_guard", "same_policy")
        }
        if switches["same_policy"] and not switches["require_guard"]:
            self._problem("same_policy", "asks for require_guard = true, which is not set")
        if self._problems:
            raise PolicyError("\n".join(self._problems))
        return Policy(
            rules=rules,
            types=types,
            identities=identities,
            revoked=revoked,
            enforces=mode == "enforce",
            audit=self._file.absolute().parent / audit,
            allow_partial=switches["allow_partial"],
            require_guard=switches["require_guard"],
            same_policy=switches["same_policy"],
            source=str(self._file),
            file=self._file.absolute(),
            digest=digest,
            **{name: value for name, value in limits.items() if value is not None},
        )

    def _rules(self, parsed: dict[str, Any]) -> list[Any]:
        entries = parsed.get("rule", [])
        if type(entries) is list:
            return entries
        self._problem(
            "rule", "is no list of rules; write [[rule]], with two brackets, above each rule"
        )
        return []

    def _rule(self, number: int, table: Any, roles: Mapping[str, tuple[str, ...]]) -> Rule:
        where = f"rule {number}"
        if not isinstance(table, dict):
            self._problem("rule", f"is {table!r}; write each rule as a table [[rule]]")
            return Rule(())
        self._known(table, tuple(item.name for item in fields(Rule)), where)
        lists = {
            name: self._names(table, name, pattern, example, where)
            for name, (pattern, example) in ENTRIES.items()
        }
        if not table.get("peers"):
            self._problem(
                "peers", f"is missing or empty in {where}; list the workers that it is for"
            )
        return Rule(**{**lists, "peers": self._without_roles(lists["peers"], roles, where)})

    def _without_roles(
        self, entries: Iterable[str], roles: Mapping[str, tuple[str, ...]], where: str
    ) -> tuple[str, ...]:
        """Return patterns of names, with those of a role in its place."""
        names: list[str] = []
        for entry in entries:
            if not entry.startswith("@"):
                names.append(entry)
            elif entry[1:] in roles:
                names += roles[entry[1:]]
            else:
                known = ", ".join(roles) or "none"
                self._problem(entry, f"in {where} is no role of [roles]; there are: {known}")
        return tuple(names)

    def _identities(
        self, table: dict[str, Any], roles: Mapping[str, tuple[str, ...]]
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        for identity in table:
            if not _IDENTITY.fullmatch(identity):
                example = "'spiffe://example.org/trainer' or 'trainer0.example.org'"
                self._problem(identity, f"in [identities] is no identity; one is {example}")
        pattern, example = ENTRIES["peers"]
        return tuple(
            (
                identity,
                self._without_roles(
                    self._names(table, identity, pattern, example, "[identities]"),
                    roles,
                    "[identities]",
                ),
            )
            for identity in table
        )

    def _roles(self, table: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        return {name: self._names(table, name, _PATTERN, "'trainer*'", "[roles]") for name in table}

    def _names(
        self,
        table: Mapping[str, Any],
        name: str,
        pattern: re.Pattern[str],
        example: str,
        where: str,
    ) -> tuple[str, ...]:
        value = table.get(name, [])
        if not isinstance(value, list):
            self._problem(
                name, f"in {where} is {value!r}; it must be a list of texts; an entry is {example}"
            )
            return ()
        for entry in value:
            if not isinstance(entry, str) or not pattern.fullmatch(entry):
                self._problem(
                    entry if isinstance(entry, str) else name,
                    f"in {name!r} of {where} {_wrong(name, entry, pattern, example)}",
                )
        return tuple(str(entry) for entry in value)

    def _value(self, table: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
        value = table.get(name, default)
        if type(value) is not kind:
            self._problem(name, f"is {value!r}; it must be of type {kind.__name__}")
            return default
        return value

    def _positive(self, table: Mapping[str, Any], name: str) -> int | None:
        value = table.get(name)
        if value is not None and (type(value) is not int or value < 1):
            self._problem(name, f"is {value!r}; it must be a whole number above 0")
            return None
        return value

    def _known(self, table: Mapping[str, Any], names: Iterable[str], where: str) -> None:
        allowed = tuple(names)
        for key in table:
            if key in allowed:
                continue
            advice = ""
            if where != "the policy" and key in _TOP:
                advice = "it belongs to the whole policy: write it above the first [[rule]]; "
            elif close := difflib.get_close_matches(key, allowed, 1):
                advice = f"did you mean {close[0]!r}? "
            self._problem(key, f"is no key of {where}; {advice}allowed are {', '.join(allowed)}")

    def _problem(self, key: str, text: str) -> None:
        place = _place(str(self._file), self._lines, key)
        self._problems.append(f"{place}: {key!r} {text}{'' if text.endswith('?') else '.'}")
