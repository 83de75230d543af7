"""Fault rules as values, with their kinds, limits and patterns (docs/reference/file-formats.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Per = Literal["all", "pair", "payload"]
Shape = Literal["fixed", "uniform", "normal", "exponential"]

# --- kinds

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

# --- limits

#: Seconds of a delay, a pause or a time window: a year. Clocks in C++ would overflow at 292 years.
MOST_SECONDS = 31_536_000.0
#: Bytes per second of a slow link.
LEAST_RATE, MOST_RATE = 1.0, 1e12
#: How many times `duplicate` sends a message, the original included.
MOST_COPIES = 1000
#: Counts and seeds: the largest signed 64-bit integer.
MOST_COUNT = 2**63 - 1
#: Bits of an element of a tensor: of a complex number of two doubles.
MOST_BIT = 127
#: Characters of an error text, characters of a pattern, and patterns of one key.
MOST_TEXT = 10_000
MOST_PATTERN = 1000
MOST_PATTERNS = 1000
#: Bytes of a rule file, rules in it, and dotted parts of one of its keys.
MOST_BYTES = 2**20
MOST_RULES = 1000
MOST_PARTS = 16
#: Unknown keys that an error names; the search for the line of each takes time.
MOST_UNKNOWN = 20

_MOST_SHOWN = 100


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
    "stop": Kind(
        "is sent after its sender's process was stopped (SIGSTOP)",
        _keys("seconds"),
        _keys("receiver"),
    ),
    "corrupt": Kind(
        "is sent with one bit of its tensors changed", takes=_keys("element", "bit", "receiver")
    ),
    "reply_corrupt": Kind(
        "is executed, and one bit of the tensors in its reply is changed",
        takes=_keys("element", "bit", "receiver"),
    ),
    "memory": Kind(
        "is sent, and then its sender's process can allocate little memory",
        _keys("seconds", "bytes"),
        _keys("receiver"),
    ),
    "store": Kind(
        "is sent, and then no store answers its sender's process",
        _keys("seconds"),
        _keys("each", "receiver"),
    ),
    "clock": Kind(
        "is sent after the clock of its sender's process has jumped", _keys("by"), _keys("receiver")
    ),
}
#: Kinds whose rules may use the key `worker` instead of `sender`.
OF_A_WORKER = ("pause", "crash", "stop", "memory", "store", "clock")


def shown(value: object) -> str:
    """Return a short text of any value for an error message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits or too deep for repr()
        return f"an {type(value).__name__} too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def is_number(value: object, least: float, most: float) -> bool:
    """Return whether a value is a number from ``least`` to ``most``; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def is_count(value: object, least: int, most: int = MOST_COUNT) -> bool:
    """Return whether a value is an integer from ``least`` to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def matches(pattern: str, name: str) -> bool:
    """Return whether ``pattern`` matches the whole ``name``, as the C++ interceptor does.

    ``*`` matches any text, ``?`` any one character.
    """
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not others:
        return re.fullmatch(first, name, re.DOTALL) is not None
    # Atomic groups take the first occurrence of each part and never backtrack, so many stars stay fast.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.fullmatch(f"{first}{middle}.*{others[-1]}", name, re.DOTALL) is not None


class RuleError(ValueError):
    """Rules, logs or settings that are not valid.

    :ivar problems: one text for each problem: where it is, what is wrong, what to write instead.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        # A plain string: torch passes it when it raises another worker's exception again here.
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class NotWrappedError(RuntimeError):
    """A rule was added on a worker whose agent runs without fault injection."""


@dataclass(frozen=True)
class Length:
    """A duration in seconds: fixed, or drawn from a distribution for each message.

    :ivar shape: `fixed`; `uniform` from `seconds` to `spread`; `normal` with mean `seconds` and standard
        deviation `spread`, never below 0; `exponential` with mean `seconds`.
    """

    seconds: float
    shape: Shape = "fixed"
    spread: float = 0.0


@dataclass(frozen=True)
class Rule:
    """A checked fault rule; :mod:`.checking` creates these.

    An empty tuple of patterns matches everything.

    :ivar what: the kind of fault, one of :data:`KINDS`.
    :ivar messages: patterns of message types.
    :ivar senders: patterns of worker names; for the kinds in :data:`OF_A_WORKER`, the affected workers.
    :ivar receivers: patterns of worker names.
    :ivar functions: patterns of qualified names of functions and operators.
    :ivar housekeeping: whether the rule also applies to the calls that start and stop a group.
    :ivar probability: the probability, 0 to 1, that a message selected by the counts below is affected.
    :ivar after: the number of matching messages to skip first.
    :ivar every: after those, select every n-th message.
    :ivar first: select at most this many messages; 0 means no limit.
    :ivar per: what `after`, `every` and `first` count: all messages of the worker (`all`), the messages
        to one receiver (`pair`), or the messages with one payload to one receiver (`payload`).
    :ivar budget: the most faults in one worker process; 0 means no limit.
    :ivar start: seconds after the worker's `init_rpc` at which the rule becomes active.
    :ivar end: seconds after the worker's `init_rpc` at which it becomes inactive; None means never.
    :ivar mark: a pattern; the rule is active only while the program is inside a matching mark.
    :ivar length: the value of `seconds`; None for kinds without it.
    :ivar others: `reorder`: the number of later messages to the same worker that overtake the message.
    :ivar within: `reorder`: seconds after which the message is sent in any case.
    :ivar one_way: `partition`, `bandwidth`: only the direction from senders to receivers is affected.
    :ivar rate: `bandwidth`: bytes per second.
    :ivar copies: `duplicate`: how many times the message is sent, the original included.
    :ivar exit_code: `crash`: the exit status; None means SIGKILL.
    :ivar text: `fail`, `reply_fail`: the text of the error.
    :ivar element: `corrupt`, `reply_corrupt`: the element, counted over all tensors; None means drawn.
    :ivar bit: `corrupt`, `reply_corrupt`: the bit of the element, from the lowest; None means drawn.
    :ivar memory: `memory`: how many more bytes the process can allocate.
    :ivar each: `store`: seconds that each request takes longer; 0 means that none is answered.
    :ivar by: `clock`: seconds by which the wall clock jumps; negative means back.
    :ivar source: where the rule was written, for messages.
    :ivar named: whether the author of the rule gave it a name.
    """

    name: str
    what: str
    messages: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    housekeeping: bool = False
    probability: float = 1.0
    after: int = 0
    every: int = 1
    first: int = 0
    per: Per = "all"
    budget: int = 0
    start: float = 0.0
    end: float | None = None
    mark: str = ""
    length: Length | None = None
    others: int = 1
    within: float = 1.0
    one_way: bool = False
    rate: float = 0.0
    copies: int = 2
    exit_code: int | None = None
    text: str = ""
    element: int | None = None
    bit: int | None = None
    memory: int = 0
    each: float = 0.0
    by: float = 0.0
    source: str = field(default="", compare=False)
    named: bool = field(default=True, compare=False)

    def concerns(self, worker: str) -> bool:
        """Return whether this rule could cause a fault on the worker of that name."""
        both = self.what == "pause" or (
            self.what in {"partition", "bandwidth"} and not self.one_way
        )
        patterns = [*self.senders, *self.receivers] if both and self.receivers else self.senders
        return not patterns or any(matches(pattern, worker) for pattern in patterns)

    def native(self) -> dict[str, Any]:
        """Return the rule in the form that the C++ interceptor and the event log use."""
        settings = asdict(self)
        del settings["source"], settings["named"]
        length: Length | None = self.length
        del settings["length"]
        if length is not None:
            settings.update(seconds=length.seconds, shape=length.shape, spread=length.spread)
        settings["bound"] = settings.pop("within")
        for key in ("end", "exit_code", "element", "bit"):
            if settings[key] is None:
                del settings[key]
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in settings.items()
        }

    def content(self) -> str:
        """Return the rule without its name as text; rules with equal settings have equal texts."""
        return json.dumps({**self.native(), "name": ""}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class RuleSet:
    """Rules, and the seed of their random decisions."""

    rules: tuple[Rule, ...] = ()
    seed: int = 0
