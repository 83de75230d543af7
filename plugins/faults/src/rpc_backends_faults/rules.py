"""Rules of fault injection as values: what happens to which messages, and when."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rpc_backends_faults.patterns import matches

Per = Literal["all", "pair", "payload"]
Shape = Literal["fixed", "uniform", "normal", "exponential"]


@dataclass(frozen=True)
class Length:
    """How long something lasts: always the same, or drawn anew for each message.

    :ivar shape: `fixed`; `uniform` from `seconds` to `spread`; `normal` with mean `seconds` and standard
        deviation `spread`, never below 0; `exponential` with mean `seconds`.
    """

    seconds: float
    shape: Shape = "fixed"
    spread: float = 0.0


@dataclass(frozen=True)
class Rule:
    """A rule that has been checked; :mod:`.checking` makes them.

    :ivar what: the kind of fault, one of :data:`.kinds.KINDS`.
    :ivar messages: patterns of message types; as everywhere here, none is all.
    :ivar senders: patterns of worker names; of `pause` and `crash`, the workers that it happens to.
    :ivar receivers: patterns of worker names.
    :ivar functions: patterns of qualified names of functions and operators.
    :ivar housekeeping: also the calls by which torch starts and stops a group.
    :ivar probability: of a message that has come so far, 0 to 1.
    :ivar after: messages that are let pass first.
    :ivar every: of those that follow, every which.
    :ivar first: of these, how many; 0 for all.
    :ivar per: what `after`, `every` and `first` count: all messages of the worker, those to one receiver,
        or those of one payload to one receiver.
    :ivar budget: faults of a worker's process at most; 0 for no limit.
    :ivar start: seconds since the worker's `init_rpc` before which nothing happens.
    :ivar end: seconds since then after which nothing happens; None for never.
    :ivar mark: a pattern; only while the program is in a mark of such a name.
    :ivar length: of a delay or a pause; None where there is none.
    :ivar others: `reorder`: messages to the same worker that pass before it.
    :ivar within: `reorder`: seconds after which it goes anyway.
    :ivar one_way: `partition`, `bandwidth`: only from senders to receivers.
    :ivar rate: `bandwidth`: bytes a second.
    :ivar copies: `duplicate`: how often it is sent in all.
    :ivar exit_code: `crash`; None for SIGKILL.
    :ivar text: `fail`, `reply_fail`: of the error.
    :ivar source: where it was written, for texts.
    :ivar named: whether whoever wrote it has named it.
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
        """Tell whether a worker of that name could have a fault by this rule."""
        both = self.what == "pause" or (
            self.what in {"partition", "bandwidth"} and not self.one_way
        )
        patterns = [*self.senders, *self.receivers] if both and self.receivers else self.senders
        return not patterns or any(matches(pattern, worker) for pattern in patterns)

    def native(self) -> dict[str, Any]:
        """Return the rule as the agent in C++ takes it, which is also how the log has it."""
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
        """Return what it says, less its name: one text for the same terms, however they are written."""
        return json.dumps({**self.native(), "name": ""}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class RuleSet:
    """Rules, and the seed of what they leave to chance."""

    rules: tuple[Rule, ...] = ()
    seed: int = 0
