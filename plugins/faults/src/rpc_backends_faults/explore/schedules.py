"""Fault schedules: sets of rules that are generated from a seed, as rule files."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rpc_backends_faults import files
from rpc_backends_faults.checking import check_rule
from rpc_backends_faults.explore.places import Place
from rpc_backends_faults.rules import NEVER_TWICE
from rpc_backends_faults.words import explain

#: The kinds that are generated, and for each the settings that a fault of it may have.
CHOICES: dict[str, tuple[dict[str, Any], ...]] = {
    "duplicate": ({},),
    "reply_lost": ({},),
    "reply_fail": ({},),
    "reply_delay": ({"seconds": 0.3}, {"seconds": 3.0}),
    "drop": ({},),
    "fail": ({},),
    "delay": ({"seconds": 0.3}, {"seconds": 3.0}),
    "reorder": ({},),
    "partition": ({"first": 4},),
    "pause": ({"seconds": 1.0, "budget": 1}, {"seconds": 3.0, "budget": 1}),
    "crash": ({"budget": 1},),
    "stop": ({"seconds": 1.0}, {"seconds": 3.0}),
    "corrupt": ({}, {"bit": 30}),
    "reply_corrupt": ({}, {"bit": 30}),
    "memory": ({"bytes": 2**24, "seconds": 1.0},),
    "store": ({"seconds": 3.0}, {"seconds": 3.0, "each": 0.2}),
    "clock": ({"by": 3600.0}, {"by": -3600.0}, {"by": 10.0}),
}
#: Faults of a link or a worker for the whole run, by name: kinds of rules with these settings.
LINKS: dict[str, dict[str, Any]] = {
    "slow": {"what": "reply_delay", "seconds": 0.2},
    "jitter": {"what": "delay", "seconds": {"exponential": 0.1}},
    "loss": {"what": "drop", "probability": 0.1},
}
KINDS = (*CHOICES, *LINKS)
#: Kinds by what they do to a program. If it survives one of a group, it probably survives the others.
EFFECTS: dict[str, tuple[str, ...]] = {
    "not executed": ("drop", "fail"),
    "executed, but not answered": ("reply_lost", "reply_fail"),
    "executed twice": ("duplicate",),
    "late": ("delay", "reply_delay", "pause", "stop", "reorder"),
    "cut off": ("partition",),
    "dead": ("crash",),
    "changed": ("corrupt", "reply_corrupt"),
    "environment": ("memory", "store", "clock"),
    "link": ("slow", "jitter", "loss"),
}
#: Kinds that act on more messages than one, so that a log of what they did is not a set of single faults.
WIDE = frozenset({"partition", "pause", "bandwidth"})
#: Kinds that act on one message only, so that several of them in a run do not hide one another.
_NARROW = frozenset(
    kind
    for effect in ("not executed", "executed, but not answered", "executed twice", "changed")
    for kind in EFFECTS[effect]
) | {"delay", "reply_delay", "reorder"}
#: How many faults of different streams the first runs have.
_SIDE_BY_SIDE = 4
_MOST_TOGETHER = 3
#: How many messages after a fault a second one may act on.
_SOON = 4

Strategy = Literal["guided", "random"]


@dataclass(frozen=True)
class Schedule:
    """The faults of a run.

    :ivar faults: the settings of each rule, as in a rule file.
    :ivar origin: where the schedule comes from, in words.
    """

    faults: tuple[tuple[tuple[str, Any], ...], ...] = ()
    seed: int = 0
    origin: str = ""

    def rule_file(self, comment: str = "") -> str:
        """Return the text of a rule file; ``comment`` stands at its top."""
        lines = [f"# {line}".rstrip() for line in comment.splitlines()]
        lines += [f"seed = {self.seed}"] if self.seed else []
        for fault in self.faults:
            lines += ["", "[[rule]]"] if lines else ["[[rule]]"]
            lines += [f"{key} = {_toml(value)}" for key, value in fault]
        return "\n".join(lines) + "\n"

    def words(self) -> list[str]:
        """Return a sentence for each fault."""
        return [explain(check_rule(dict(fault), default_name="rule")) for fault in self.faults]

    def with_faults(self, faults: Sequence[tuple[tuple[str, Any], ...]]) -> Schedule:
        """Return a schedule with these faults instead."""
        return Schedule(tuple(faults), self.seed, self.origin)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def read(path: Path) -> Schedule:
    """Return the schedule in a rule file.

    :raises RuleError: the file is not valid.
    """
    checked = files.read(path)
    tables = tomllib.loads(path.read_text(encoding="utf-8")).get("rule", [])
    return Schedule(
        tuple(tuple(table.items()) for table in tables), checked.seed, f"corpus: {path.name}"
    )


def fault(
    what: str, place: Place, number: int, settings: dict[str, Any]
) -> tuple[tuple[str, Any], ...]:
    """Return the rule that injects a fault at one message of a place, or on its link."""
    if what in LINKS:
        ends = {"receiver": place.receiver}
        ends |= {} if what == "slow" else {"sender": place.sender}  # a slow worker is so for all
        return tuple((LINKS[what] | ends).items())
    rule: dict[str, Any] = {"what": what}
    if what not in WIDE:
        rule["message"] = place.message
        rule |= {"function": place.function} if place.function else {}
    elif what == "pause" and place.function:
        rule["function"] = place.function
    rule["sender"] = place.sender
    if what != "pause":
        rule["receiver"] = place.receiver
    if number:
        rule["after"] = number
    # A pause needs more than one message: its other messages are held as well.
    rule |= {"first": 1} if what not in WIDE else {}
    return tuple((rule | settings).items())


def generate(
    places: Sequence[Place],
    kinds: Sequence[str],
    seed: int,
    strategy: Strategy = "guided",
) -> Iterator[Schedule]:
    """Return schedules without end; equal seeds and places give equal schedules.

    `guided` has three stages. First, each place gets a fault of each effect (:data:`EFFECTS`), with
    faults at up to four streams in one run: most runs pass, and each clears several places. Then each
    place gets each kind, one fault a run, so that no fault hides another. At last two and three faults
    are combined. Half of these later faults act on a message that is sent soon after the first fault,
    whatever it is: so calls that only happen after a fault get faults, too. `random` lets one kind act
    on any message with a probability, as chaos tests do.

    :param places: the places of the fault-free run, sorted.
    """
    draw = random.Random(seed)
    if strategy == "random":
        for number in itertools.count(1):
            yield _anywhere(draw, kinds, seed + number)
    orders = {place: _by_effect(draw, kinds) for place in places}
    effects = sum(bool(set(kinds) & set(members)) for members in EFFECTS.values())
    for turn in range(effects):
        yield from _side_by_side(draw, [(orders[place][turn], place) for place in places])
    for turn in range(len(kinds)):
        for place in draw.sample(list(places), len(places)):
            what = orders[place][turn]
            if _may(what, place):
                yield Schedule((_drawn(draw, what, place),), origin=f"{what} at {place.text()}")
    while any(_may(what, place) for what in kinds for place in places):
        many = draw.choice(range(2, _MOST_TOGETHER + 1))
        pairs = [(draw.choice(kinds), draw.choice(places)) for _ in range(many)]
        first = pairs[0][1]
        faults = [
            _drawn(draw, what, place)
            if not number or draw.random() < 0.5
            else _soon(draw, what, first)
            for number, (what, place) in enumerate(pairs)
            if _may(what, place)
        ]
        if faults:
            yield Schedule(tuple(faults), origin=f"{len(faults)} faults together")


def _by_effect(draw: random.Random, kinds: Sequence[str]) -> list[str]:
    """Return the kinds in an order in which each effect comes once before any comes again."""
    groups = [
        draw.sample(members, len(members))
        for members in ([kind for kind in group if kind in kinds] for group in EFFECTS.values())
    ]
    rounds = itertools.zip_longest(*groups)
    return [kind for turn in rounds for kind in draw.sample(turn, len(turn)) if kind is not None]


def _side_by_side(draw: random.Random, pairs: Sequence[tuple[str, Place]]) -> Iterator[Schedule]:
    """Return schedules with these faults, several in one if they are of different streams.

    A second fault of a stream may act on the repetition of the call that had the first one. A program
    that repeats a call only a few times would give up.
    """
    groups: list[list[tuple[str, Place]]] = []
    for what, place in draw.sample(list(pairs), len(pairs)):
        if not _may(what, place):
            continue
        free = (
            group
            for group in groups
            if len(group) < _SIDE_BY_SIDE
            and what in _NARROW
            and all(kind in _NARROW and taken.stream() != place.stream() for kind, taken in group)
        )
        group = next(free, None)
        if group is None:
            groups.append([(what, place)])
        else:
            group.append((what, place))
    for group in groups:
        faults = tuple(_drawn(draw, what, place, long=True) for what, place in group)
        yield Schedule(faults, origin=" and ".join(f"{what} at {p.text()}" for what, p in group))


def _may(what: str, place: Place) -> bool:
    return not (what == "duplicate" and place.message == NEVER_TWICE)


def _drawn(
    draw: random.Random, what: str, place: Place, *, long: bool = False
) -> tuple[tuple[str, Any], ...]:
    """Return a fault of one of the messages of a place.

    :param long: take the longest time of a kind: short delays seldom change the order of anything.
    """
    # A partition counts all messages of a link.
    number = draw.choice(place.positions if what == "partition" else place.numbers)
    choices = CHOICES.get(what, ({},))
    settings = (
        max(choices, key=lambda choice: choice.get("seconds", 0)) if long else draw.choice(choices)
    )
    return fault(what, place, number, settings)


def _soon(draw: random.Random, what: str, place: Place) -> tuple[tuple[str, Any], ...]:
    """Return a fault of one of the next messages, of any kind, after the first one of a place."""
    any_message = Place("", "", place.sender, place.receiver, "")
    after = place.positions[0] + draw.randint(1, _SOON)
    settings = dict(fault(what, any_message, after, draw.choice(CHOICES.get(what, ({},)))))
    settings.pop("message", None)
    return tuple(settings.items())


def _anywhere(draw: random.Random, kinds: Sequence[str], seed: int) -> Schedule:
    what = draw.choice(kinds)
    probability = draw.choice((0.02, 0.05, 0.1, 0.2))
    settings = {"what": what, **draw.choice(CHOICES.get(what, ({},))), **LINKS.get(what, {})}
    settings.pop("first", None)
    rule = settings | {"probability": probability}
    return Schedule((tuple(rule.items()),), seed, f"{what} with probability {probability:g}")
