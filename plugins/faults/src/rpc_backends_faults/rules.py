"""Fault rules as values: what happens to which messages, and when."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rpc_backends_faults.patterns import matches

Per = Literal["all", "pair", "payload"]
Shape = Literal["fixed", "uniform", "normal", "exponential"]


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

    :ivar what: the kind of fault, one of :data:`.kinds.KINDS`.
    :ivar messages: patterns of message types.
    :ivar senders: patterns of worker names; for `pause` and `crash`, the workers that are affected.
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
    :ivar length: the duration of a delay or a pause; None for other kinds.
    :ivar others: `reorder`: the number of later messages to the same worker that overtake the message.
    :ivar within: `reorder`: seconds after which the message is sent in any case.
    :ivar one_way: `partition`, `bandwidth`: only the direction from senders to receivers is affected.
    :ivar rate: `bandwidth`: bytes per second.
    :ivar copies: `duplicate`: how many times the message is sent, the original included.
    :ivar exit_code: `crash`: the exit status; None means SIGKILL.
    :ivar text: `fail`, `reply_fail`: the text of the error.
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
        for key in ("end", "exit_code"):
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
