"""Kinds of options: how a value is checked, how a variable is read, and the valid values in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.option_checks import OptionChecks
from rpc_backends_core.spi import SettingError, parse_boolean

T_co = TypeVar("T_co", covariant=True)


def _unread(variable: str, text: str) -> Any:
    raise NotImplementedError(f"no variable is read for this kind of option: {variable}={text}")


@dataclass(frozen=True)
class Kind(Generic[T_co]):
    """What values an option may have.

    :ivar check: gets the backend's checks, the option's name and the value that a program has passed;
        returns the value of the attribute, or raises TypeError or ValueError.
    :ivar values: the valid values in words, with the unit, for tables.
    :ivar read: gets a variable's name and its text, and returns the value, or raises SettingError.
    """

    check: Callable[[OptionChecks, str, Any], T_co]
    values: str
    read: Callable[[str, str], T_co] = _unread


def seconds(least: float, most: float = math.inf) -> Kind[float]:
    """Return the kind of numbers of seconds in a range."""
    limits = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"

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


INTEGER = Kind(OptionChecks.integer, "a number, 1 or more")
YES_OR_NO = Kind(OptionChecks.boolean, "yes or no", parse_boolean)
PATH = Kind(OptionChecks.path, "a path", lambda _variable, path: path)
SECRET = Kind(
    OptionChecks.secret, "a secret", lambda variable, value: secret.parse(value, variable)
)
