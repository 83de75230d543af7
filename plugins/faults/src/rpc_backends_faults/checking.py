"""Turns the settings of a rule into a :class:`Rule`; checks every key and value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rpc_backends_core.spi import nearest
from rpc_backends_faults.rules import (
    CALLS,
    KINDS,
    LEAST_RATE,
    MESSAGE_TYPES,
    MOST_BIT,
    MOST_COPIES,
    MOST_COUNT,
    MOST_PATTERN,
    MOST_PATTERNS,
    MOST_RATE,
    MOST_SECONDS,
    MOST_TEXT,
    MOST_UNKNOWN,
    NEVER_TWICE,
    OF_A_WORKER,
    WRAPPERS,
    Length,
    Rule,
    RuleError,
    is_count,
    is_number,
    matches,
    shown,
)

#: Keys that every rule may have.
COMMON = (
    *(
        "name",
        "what",
        "message",
        "sender",
        "function",
        "housekeeping",
        "probability",
        "after",
        "every",
    ),
    *("first", "per", "budget", "start", "end", "mark"),
)
ALL_KEYS = tuple(sorted({*COMMON, "worker"}.union(*(k.needs | k.takes for k in KINDS.values()))))
_NAME = re.compile(r"[A-Za-z0-9_:.-]{1,80}")
_PER = ("all", "pair", "payload")
_SHAPES = ("uniform", "normal", "exponential")

#: Returns where a key of the rule is (None: the rule itself), as the start of an error message.
Where = Callable[[str | None], str]


def check_rule(
    settings: Mapping[str, Any], *, default_name: str, where: Where = lambda _key: ""
) -> Rule:
    """Return the rule that ``settings`` describe.

    :param settings: the keys of a rule file, :data:`ALL_KEYS`, with their values.
    :param where: returns the place of a key; error messages begin with it.
    :raises RuleError: the settings are not valid; lists every problem.
    """
    check = _Check(settings, where)
    rule = check.rule(default_name)
    if check.problems:
        raise RuleError(check.problems)
    return rule


def default_name(settings: Mapping[str, Any], suffix: object) -> str:
    """Return the default name of a rule: its kind and ``suffix``."""
    what = settings.get("what")
    return f"{what if isinstance(what, str) and what in KINDS else 'rule'}-{suffix}"


def is_seed(value: object) -> bool:
    """Return whether a value can be a seed."""
    return is_count(value, 0)


class _Check:
    def __init__(self, settings: Mapping[str, Any], where: Where) -> None:
        self.settings = settings
        self.where = where
        self.problems: list[str] = []

    def problem(self, key: str | None, text: str) -> None:
        self.problems.append(f"{self.where(key)}{text}")

    def rule(self, default_name: str) -> Rule:
        name = self.name(default_name)
        what = self.what()
        self.keys(what)
        start, end = self.seconds("start", 0.0), self.optional_seconds("end")
        if end is not None and end <= start:
            self.problem(
                "end",
                f"'end' ({end:g} s) is not after 'start' ({start:g} s), so the rule could never apply."
                " Both count from init_rpc.",
            )
        functions = self.patterns("function")
        messages = self.messages(what, functions)
        worker = self.patterns("worker")
        sender = self.patterns("sender")
        if worker and sender:
            self.problem(
                "worker", "'worker' and 'sender' mean the same here; use only one of them."
            )
        first, budget = self.count("first", 0), self.count("budget", 0)
        length = self.length()
        if what == "pause":
            if length is None and end is None:
                self.problem(None, "a pause needs a duration: set 'seconds' or 'end'.")
            if length == Length(0.0):
                self.problem("seconds", "'seconds' is 0; a pause must last longer than 0 seconds.")
            ends = ("first", "budget", "every", "probability", "after", "mark", "end")
            if length is not None and not any(key in self.settings for key in ends):
                budget = 1  # otherwise the next message after the pause would start another one
        return Rule(
            name=name,
            what=what,
            messages=messages,
            senders=worker or sender,
            receivers=self.patterns("receiver"),
            functions=functions,
            housekeeping=self.flag("housekeeping"),
            probability=self.probability(),
            after=self.count("after", 0),
            every=self.count("every", 1, least=1),
            first=first,
            per=self.word("per", _PER, "all"),  # type: ignore[arg-type]  # one of _PER
            budget=budget,
            start=start,
            end=end,
            mark=self.mark(),
            length=length,
            others=self.count("others", 1, least=1),
            within=self.seconds("within", 1.0, above=True),
            one_way=self.flag("one_way"),
            rate=self.rate() if "rate" in self.settings else 0.0,
            copies=self.count("copies", 2, least=2, most=MOST_COPIES),
            exit_code=self.exit_code(),
            text=self.text("text"),
            element=self.optional_count("element"),
            bit=self.optional_count("bit", most=MOST_BIT),
            memory=self.count("bytes", 0),
            each=self.seconds("each", 0.0, above="each" in self.settings),
            by=self.jump() if "by" in self.settings else 0.0,
            source=self.where(None).removesuffix(": "),
            named="name" in self.settings,
        )

    def name(self, default: str) -> str:
        name = self.settings.get("name", default)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self.problem(
                "name",
                f"the name {shown(name)} is not valid: use 1 to 80 letters, digits, '_', '-', '.' or"
                " ':'.",
            )
            return default
        return name

    def what(self) -> str:
        what = self.settings.get("what")
        if what is None:
            self.problem(None, f"the rule has no 'what'; set it to one of: {', '.join(KINDS)}.")
        elif not isinstance(what, str):
            self.problem(
                "what", f"'what' is {shown(what)}; it must be a string, one of: {', '.join(KINDS)}."
            )
        elif what not in KINDS:
            self.problem("what", f"{shown(what)} is not a kind of fault.{_hint(what, KINDS)}")
        else:
            return what
        return ""

    def keys(self, what: str) -> None:
        kind = KINDS.get(what)
        allowed = {*COMMON, *(kind.needs | kind.takes if kind else ALL_KEYS)}
        if what in OF_A_WORKER:
            allowed.add("worker")
        unknown = [key for key in self.settings if key not in ALL_KEYS]
        for key in unknown[:MOST_UNKNOWN]:
            self.problem(key, f"{shown(key)} is not a key of a rule.{_hint(key, ALL_KEYS)}")
        for key in self.settings:
            if key in ALL_KEYS and key not in allowed:
                own = sorted(allowed - set(COMMON))
                self.problem(
                    key,
                    f"{what!r} does not take {key!r}. Besides the keys of all rules it takes: "
                    f"{', '.join(own) or 'none'}.",
                )
        for key in sorted(kind.needs if kind else ()):
            if key not in self.settings:
                self.problem(None, f"{what!r} needs {key!r}.")

    def messages(self, what: str, functions: tuple[str, ...]) -> tuple[str, ...]:
        patterns = self.patterns("message")
        for pattern in patterns:
            types = [known for known in MESSAGE_TYPES if matches(pattern, known)]
            if what == "duplicate" and types == [NEVER_TWICE]:
                self.problem(
                    "message",
                    f"a {NEVER_TWICE} cannot be duplicated: torch's autograd engine counts the gradients"
                    " that arrive, and one too many would keep the backward pass from ending.",
                )
            if types:
                continue
            if any(matches(pattern, wrapper) for wrapper in WRAPPERS):
                self.problem(
                    "message",
                    f"rules do not see {pattern[:100]}: a message that is wrapped for autograd or"
                    " profiling has the type of the message inside, for example PYTHON_CALL.",
                )
            else:
                self.problem(
                    "message",
                    f"{shown(pattern)} is not a request type of torch."
                    f"{_hint(pattern, MESSAGE_TYPES)}",
                )
        if (
            patterns
            and functions
            and not any(matches(pattern, call) for call in CALLS for pattern in patterns)
        ):
            self.problem(
                "function",
                f"messages of type {' and '.join(patterns)[:100]} call no function; these types do: "
                f"{', '.join(CALLS)}.",
            )
        return patterns

    def patterns(self, key: str) -> tuple[str, ...]:
        if key not in self.settings:
            return ()
        value = self.settings[key]
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not all(
            isinstance(pattern, str) and pattern for pattern in values
        ):
            self.problem(
                key, f"{key!r} is {shown(value)}; it must be a string or a list of strings."
            )
            return ()
        if not values:
            self.problem(
                key, f"{key!r} is empty and would match nothing; remove it to match everything."
            )
        if len(values) > MOST_PATTERNS:
            self.problem(
                key,
                f"{key!r} is a list of {len(values)} patterns; at most {MOST_PATTERNS} are"
                " allowed.",
            )
            return ()
        for pattern in values:
            self.pattern(key, pattern)
        return tuple(values)

    def pattern(self, key: str, pattern: str) -> None:
        if len(pattern) > MOST_PATTERN:
            self.problem(
                key,
                f"{key!r} has a pattern of {len(pattern)} characters; at most {MOST_PATTERN} are"
                " allowed.",
            )
        self.utf8(key, pattern)
        if set(pattern) & set("[]"):
            self.problem(
                key,
                f"the pattern {shown(pattern)} has brackets, which are not wildcards here, and no name"
                " contains them. '*' matches any text and '?' any one character; write several patterns"
                " as a list.",
            )

    def utf8(self, key: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            self.problem(key, f"{key!r} is {shown(text)}, which cannot be encoded as UTF-8.")

    def probability(self) -> float:
        value = self.settings.get("probability", 1.0)
        if not is_number(value, 0, 1):
            self.problem(
                "probability",
                f"the probability is {shown(value)}; it must be a number from 0 to 1.",
            )
            return 1.0
        return float(value)

    def count(self, key: str, default: int, *, least: int = 0, most: int = MOST_COUNT) -> int:
        value: Any = self.settings.get(key, default)
        if is_count(value, least, most):
            return int(value)
        limited = most < MOST_COUNT or is_count(value, most, value)
        bound = f", and at most {most}" if limited else ""
        self.problem(
            key, f"{key!r} is {shown(value)}; it must be a whole number, {least} or more{bound}."
        )
        return default

    def seconds(self, key: str, default: float, *, above: bool = False) -> float:
        value: Any = self.settings.get(key, default)
        if is_number(value, 0, MOST_SECONDS) and (value > 0 or not above):
            return float(value)
        least = "above 0" if above else "0 or more"
        self.problem(
            key,
            f"{key!r} is {shown(value)}; it must be a number of seconds, {least}, and at most "
            f"{MOST_SECONDS:.0f} (a year).",
        )
        return default

    def rate(self) -> float:
        value: Any = self.settings.get("rate", LEAST_RATE)
        if is_number(value, LEAST_RATE, MOST_RATE):
            return float(value)
        self.problem(
            "rate",
            f"'rate' is {shown(value)}; it must be a number of bytes per second from "
            f"{LEAST_RATE:.0f} to {MOST_RATE:.0f}.",
        )
        return LEAST_RATE

    def jump(self) -> float:
        value: Any = self.settings.get("by")
        if is_number(value, -MOST_SECONDS, MOST_SECONDS) and value != 0:
            return float(value)
        self.problem(
            "by",
            f"'by' is {shown(value)}; it must be a number of seconds, not 0, from -{MOST_SECONDS:.0f} to "
            f"{MOST_SECONDS:.0f} (a year).",
        )
        return 0.0

    def optional_count(self, key: str, most: int = MOST_COUNT) -> int | None:
        return self.count(key, 0, most=most) if key in self.settings else None

    def optional_seconds(self, key: str) -> float | None:
        seconds = self.seconds(key, -1.0) if key in self.settings else -1.0
        return seconds if seconds >= 0 else None

    def flag(self, key: str) -> bool:
        value = self.settings.get(key, False)
        if not isinstance(value, bool):
            self.problem(key, f"{key!r} is {shown(value)}; it must be true or false.")
            return False
        return value

    def text(self, key: str) -> str:
        value = self.settings.get(key, "")
        if not isinstance(value, str):
            self.problem(key, f"{key!r} is {shown(value)}; it must be a string.")
            return ""
        if len(value) > MOST_TEXT:
            self.problem(
                key,
                f"{key!r} has {len(value)} characters; at most {MOST_TEXT} are allowed.",
            )
        self.utf8(key, value)
        return value

    def mark(self) -> str:
        value = self.settings.get("mark")
        if value is None:
            return ""
        if not isinstance(value, str):
            self.problem("mark", f"'mark' is {shown(value)}; it must be a string.")
            return ""
        if not value:
            self.problem(
                "mark", "'mark' is empty and would match no mark; remove it to ignore marks."
            )
        self.pattern("mark", value)
        return value

    def word(self, key: str, known: Iterable[str], default: str) -> str:
        value = self.settings.get(key, default)
        if value not in known:
            self.problem(key, f"{key!r} is {shown(value)}.{_hint(value, known)}")
            return default
        return str(value)

    def exit_code(self) -> int | None:
        value = self.settings.get("exit_code")
        if value is None:
            return None
        if not is_count(value, 0, 255):
            self.problem(
                "exit_code",
                f"'exit_code' is {shown(value)}; it must be from 0 to 255, or absent for SIGKILL.",
            )
            return None
        return int(value)

    def length(self) -> Length | None:
        value = self.settings.get("seconds")
        if value is None:
            return None
        if _is_seconds(value):
            return Length(float(value))
        if isinstance(value, Mapping) and len(value) == 1:
            [(shape, numbers)] = value.items()
            made = _length(shape, numbers)
            if made is not None:
                return made
            if shape not in _SHAPES:
                self.problem(
                    "seconds", f"{shown(shape)} is not a distribution.{_hint(shape, _SHAPES)}"
                )
                return None
        self.problem(
            "seconds",
            f"'seconds' is {shown(value)}; it must be a number, 0 or more, or one of "
            "{uniform = [MIN, MAX]}, {normal = [MEAN, STANDARD_DEVIATION]}, {exponential = MEAN}; each "
            f"number at most {MOST_SECONDS:.0f} (a year).",
        )
        return None


def _length(shape: str, numbers: Any) -> Length | None:
    if shape == "exponential":
        return (
            Length(float(numbers), "exponential") if _is_seconds(numbers) and numbers > 0 else None
        )
    if not (
        isinstance(numbers, list | tuple) and len(numbers) == 2 and all(map(_is_seconds, numbers))
    ):
        return None
    first, second = map(float, numbers)
    if shape == "uniform" and first <= second:
        return Length(first, "uniform", second)
    if shape == "normal":
        return Length(first, "normal", second)
    return None


def _is_seconds(value: Any) -> bool:
    return is_number(value, 0, MOST_SECONDS)


def _hint(word: Any, known: Iterable[str]) -> str:
    known = list(known)
    close = nearest(word[:100], known) if isinstance(word, str) else None
    return (f" Did you mean {close!r}?" if close else "") + f" Valid are: {', '.join(known)}."
