"""Reduces a failing schedule to the fewest faults that still fail (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from rpc_backends_faults.explore.places import Place
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.schedules import WIDE, Schedule, fault
from rpc_backends_faults.rules import KINDS

Fault = tuple[tuple[str, Any], ...]
#: Yields schedules to run, also at the same time; is sent whether each run failed for the same cause.
Shrinking = Generator[list[Schedule], list[bool], None]

#: How often a schedule that passes is tried before it counts as passing.
_TRIES = 2
#: How many confirming runs are given at once; runs that hang wait at the same time.
_CONFIRMED_TOGETHER = 5
#: How many faults of a log are turned into rules at most.
_MOST_FAULTS = 60


@dataclass
class Shrunk:
    """The state of shrinking, which may be stopped at any time.

    :ivar schedule: the smallest schedule that is known to fail.
    :ivar failed: in how many of the ``of`` runs it failed that confirmed it.
    :ivar tried: how many runs were made on the way.
    :ivar repeated: whether the schedule was run again.
    :ivar again: whether any run failed again for the same cause.
    :ivar complete: whether shrinking and confirming have ended.
    :ivar stopped: why they did not end: the time was over, or the search was interrupted.
    """

    schedule: Schedule
    failed: int = 0
    of: int = 0
    tried: int = 0
    repeated: bool = False
    again: bool = False
    complete: bool = False
    stopped: str = ""

    def may_repeat(self) -> bool:
        """Return whether the schedule failed again, or was not run again yet."""
        return self.failed > 0 or not self.of

    def text(self) -> str:
        """Return in words how often the schedule fails."""
        if self.of:
            return f"fails in {self.failed} of {self.of} runs"
        if self.again or self.repeated:
            result = "failed again" if self.again else "passed when it was repeated"
            return result + (f", and then {self.stopped}" if self.stopped else "")
        return "was not repeated" + (f": {self.stopped}" if self.stopped else " yet")


def exact(run: Run, schedule: Schedule) -> Schedule | None:
    """Return a schedule with one rule for each fault that acted in a run, from its log of decisions.

    :returns: None if there were too many faults, or a rule acted that cannot be written so.
    """
    faults: dict[Fault, None] = {}
    for acted in run.injected:
        if acted.what in WIDE:
            return None
        settings = _own_settings(acted.rule, schedule)
        if acted.what == "crash":
            settings["budget"] = 1
        if "seconds" in settings:  # it may have been a distribution
            settings["seconds"] = round(acted.seconds, 3)
        place = Place(acted.message, acted.function, acted.sender, acted.receiver, "")
        faults[fault(acted.what, place, acted.number, settings)] = None
    if not faults or len(faults) > _MOST_FAULTS:
        return None
    return Schedule(tuple(faults), 0, schedule.origin)


def _own_settings(name: str, schedule: Schedule) -> dict[str, Any]:
    """Return the settings that only the kind of this rule has, for example the bit that it changes."""
    for number, rule in enumerate(schedule.faults, 1):
        settings = dict(rule)
        if name == settings.get("name", f"{settings['what']}-{number}"):
            kind = KINDS[settings["what"]]
            own = (kind.needs | kind.takes) - {"receiver"}
            return {key: value for key, value in settings.items() if key in own}
    return {}


def shrink(shrunk: Shrunk, first: Run, confirmations: int = 10) -> Shrinking:
    """Shrink a schedule that failed in the run ``first``.

    :param shrunk: holds the schedule, and the result while it is made.
    :param confirmations: how often the smallest schedule is run to say in how many runs it fails.
    """

    def fails(candidate: Schedule) -> Generator[list[Schedule], list[bool], bool]:
        for _ in range(_TRIES):
            shrunk.tried += 1
            if (yield [candidate])[0]:
                shrunk.again = True
                shrunk.schedule = candidate
                return True
        return False

    decided = exact(first, shrunk.schedule)
    # A distribution of seconds is a dict, so faults cannot be members of a set.
    given = shrunk.schedule.faults
    if decided is not None and (
        len(decided.faults) != len(given) or any(rule not in given for rule in decided.faults)
    ):
        yield from fails(decided)
    if len(shrunk.schedule.faults) > 1:
        yield from _fewest(shrunk.schedule, fails)
    for number in range(len(shrunk.schedule.faults)):
        for simpler in _simpler(shrunk.schedule.faults[number]):
            faults = [*shrunk.schedule.faults]
            faults[number] = simpler
            if (yield from fails(shrunk.schedule.with_faults(faults))):
                break
    while shrunk.of < confirmations:
        together = min(_CONFIRMED_TOGETHER, confirmations - shrunk.of)
        failed = yield [shrunk.schedule] * together
        shrunk.failed += sum(failed)
        shrunk.of += together
        shrunk.again |= any(failed)
    shrunk.complete = True


def _fewest(
    schedule: Schedule,
    fails: Callable[[Schedule], Generator[list[Schedule], list[bool], bool]],
) -> Shrinking:
    """Find a smallest part of the faults that fails: without any one of them, it passes."""
    faults: list[Fault] = list(schedule.faults)
    parts = 2
    while len(faults) > 1:
        size = max(1, len(faults) // parts)
        chunks = [faults[begin : begin + size] for begin in range(0, len(faults), size)]
        # A part alone first, then all without a part; with two parts these are the same.
        rests = [[f for f in faults if f not in chunk] for chunk in chunks] if parts > 2 else []
        for candidate in [*chunks, *rests]:
            smaller = 0 < len(candidate) < len(faults)
            if smaller and (yield from fails(schedule.with_faults(candidate))):
                faults, parts = candidate, max(2, min(parts - 1, len(candidate)))
                break
        else:
            if parts >= len(faults):
                break
            parts = min(2 * parts, len(faults))


def _simpler(rule: Fault) -> list[Fault]:
    """Return simpler rules to try: the first message in place of a later one."""
    settings = dict(rule)
    if not settings.get("after"):
        return []
    del settings["after"]
    return [tuple(settings.items())]
