"""Explains rules in words."""

from __future__ import annotations

from collections.abc import Iterable

from rpc_backends_faults.rules import KINDS, Length, Rule


def explain(rule: Rule) -> str:
    """Return one sentence that says what a rule does."""
    return f"{_which(rule)} {_does(rule)}{_when(rule)}."


def _which(rule: Rule) -> str:
    messages = f"each {_or(rule.messages)}" if rule.messages else "each request"
    if rule.functions:
        messages += f" that calls {_or(rule.functions)}"
    if rule.what == "pause":
        who = _or(rule.senders) if rule.senders else "any worker"
        return f"{messages} from {who}, and each reply from it,"
    if rule.what in {"partition", "bandwidth"} and not rule.one_way:
        ends = f"{_or(rule.senders) or 'any worker'} and {_or(rule.receivers) or 'any worker'}"
        messages += f" between {ends}"
    else:
        messages += f" from {_or(rule.senders)}" if rule.senders else ""
        messages += f" to {_or(rule.receivers)}" if rule.receivers else ""
    if rule.housekeeping:
        messages += ", including those that start and stop groups,"
    return messages


def _does(rule: Rule) -> str:
    does = KINDS[rule.what].does
    length = _length(rule.length) if rule.length is not None else ""
    others = "1 later request" if rule.others == 1 else f"{rule.others} later requests"
    answered = "is answered" if rule.others == 1 else "are answered"
    how = "SIGKILL" if rule.exit_code is None else f"exit status {rule.exit_code}"
    special = {
        "delay": does.replace("later", f"{length} later"),
        "reply_delay": does.replace("later", f"{length} later"),
        "duplicate": f"is sent {_times(rule.copies)}",
        "reorder": f"is held until {others} to the same worker {answered}, for at most "
        f"{rule.within:g} s",
        "bandwidth": f"waits for its turn on a link of {rule.rate:g} bytes per second",
        "crash": f"{does}, with {how}",
        "stop": f"{does} for {length}",
        "corrupt": f"{does}: {_bit(rule)}",
        "reply_corrupt": f"{does}: {_bit(rule)}",
        "memory": f"is sent, and then its sender's process can allocate at most {rule.memory} bytes, "
        f"for {length}",
        "store": f"{does}, for {length}",
        "clock": f"is sent after the clock of its sender's process has jumped by {rule.by:+g} s",
    }
    if rule.what == "partition" and rule.one_way:
        return "is lost, and so is each reply that travels in the same direction"
    if rule.what == "store" and rule.each:
        slow = f"each request of its sender's process to a store takes {rule.each:g} s longer"
        return f"is sent, and then {slow}, for {length}"
    if rule.what == "pause" and length:
        return f"{does}, for {length}"
    return special.get(rule.what, f"{does} that says {rule.text!r}" if rule.text else does)


def _bit(rule: Rule) -> str:
    bit = "a bit" if rule.bit is None else f"bit {rule.bit}"
    element = (
        "an element that the seed chooses" if rule.element is None else f"element {rule.element}"
    )
    return f"{bit} of {element}"


def _when(rule: Rule) -> str:
    parts = []
    counted = {"all": "", "pair": " per receiver", "payload": " per payload"}[rule.per]
    if rule.after:
        first = "first" if rule.after == 1 else f"first {rule.after}"
        parts.append(f"after the {first}{counted}")
        counted = ""
    if rule.every > 1:
        parts.append(f"every {_ordinal(rule.every)} time{counted}")
        counted = ""
    if rule.first:
        parts.append(f"{_times(rule.first)} only{counted}")
    if rule.probability < 1:
        parts.append(f"with probability {rule.probability:g}")
    if rule.budget:
        parts.append(f"at most {_times(rule.budget)} per process")
    if rule.start and rule.end is not None:
        parts.append(f"from {rule.start:g} s to {rule.end:g} s after init_rpc")
    elif rule.start:
        parts.append(f"from {rule.start:g} s after init_rpc on")
    elif rule.end is not None:
        parts.append(f"until {rule.end:g} s after init_rpc")
    if rule.mark:
        parts.append(f"while the program is inside the mark {rule.mark}")
    return (": " if parts else "") + ", ".join(parts)


def _length(length: Length) -> str:
    if length.shape == "uniform":
        return f"{length.seconds:g} to {length.spread:g} s"
    if length.shape == "normal":
        return f"about {length.seconds:g} s (standard deviation {length.spread:g} s)"
    if length.shape == "exponential":
        return f"{length.seconds:g} s on average (exponential)"
    return f"{length.seconds:g} s"


def _or(words: Iterable[str]) -> str:
    return " or ".join(words)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _ordinal(number: int) -> str:
    ending = (
        "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"
