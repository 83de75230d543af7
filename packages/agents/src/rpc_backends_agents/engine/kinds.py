"""Kinds of options: how a value is checked, how a variable is read, and the valid values in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.option_checks import MOST_BYTES, OptionChecks, range_in_words
from rpc_backends_core.spi import SettingError, parse_boolean

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Kind(Generic[T_co]):
    """What values an option may have.

    :ivar check: gets the backend's checks, the option's name and the value that a program has passed;
        returns the value of the attribute, or raises TypeError or ValueError. It also gets the default
        of the option.
    :ivar values: the valid values in words, with the unit, for tables.
    :ivar read: gets a variable's name and its text, and returns the value, or raises SettingError. None
        if the options of this kind have no variable.
    """

    check: Callable[[OptionChecks, str, Any], T_co]
    values: str
    read: Callable[[str, str], T_co] | None = None


def _check_range(kind: str, least: float, most: float) -> str:
    if not least <= most:
        raise ValueError(f"{kind}({least}, {most}) has no value; the first limit is the lower one.")
    return range_in_words(least, most)


def integer(least: int, most: int, unit: str = "an integer") -> Kind[int]:
    """Return the kind of integers in a range.

    :param unit: of what it is a number, for tables.
    :raises ValueError: no integer is in the range.
    """
    limits = _check_range("integer", least, most)

    def read(variable: str, text: str) -> int:
        value = int(text) if text.removeprefix("-").isdecimal() else least - 1
        if not least <= value <= most:
            raise SettingError(f"{variable}={text!r} is not an integer {limits}.")
        return value

    check = partial(OptionChecks.integer, least=least, most=most)
    return Kind(check, f"{unit}, {limits}", read)


def seconds(least: float, most: float = math.inf) -> Kind[float]:
    """Return the kind of numbers of seconds in a range.

    :raises ValueError: no number is in the range.
    """
    limits = _check_range("seconds", least, most)

    def read(variable: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -math.inf
        if not least <= value <= most or value == math.inf:
            raise SettingError(f"{variable}={text!r} is not a number of seconds {limits}.")
        return value

    return Kind(partial(OptionChecks.seconds, least=least, most=most), f"seconds, {limits}", read)


def text(meaning: str) -> Kind[str]:
    """Return the kind of texts that are not empty; ``meaning`` says what they are."""
    return Kind(
        lambda checks, name, value: checks.text(name, value, meaning),
        meaning,
        lambda _variable, value: value,
    )


INTEGER = integer(1, MOST_BYTES)
BYTES = integer(1, MOST_BYTES, "bytes")
YES_OR_NO = Kind(OptionChecks.boolean, "yes or no", parse_boolean)
PATH = Kind(OptionChecks.path, "a path", lambda _variable, path: path)
SECRET = Kind(
    OptionChecks.secret, "a secret", lambda variable, value: secret.parse(value, variable)
)
