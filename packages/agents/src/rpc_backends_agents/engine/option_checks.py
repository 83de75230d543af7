"""Checks of the values of options. A check returns the value, or says what is wrong with it."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any

from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.secret import Secret

#: More bytes than any memory has.
MOST_BYTES = 1 << 61


def range_in_words(least: float, most: float) -> str:
    """Return the range in words; ``most`` may be infinite."""

    def shown(number: float) -> str:
        if number == MOST_BYTES:
            return "2**61"
        return f"{number:g}" if isinstance(number, float) else str(number)

    if most == math.inf:
        return f"{shown(least)} or more"
    return f"from {shown(least)} to {shown(most)}"


class OptionChecks:
    """Checks values, one kind each. The checks return the value, or raise TypeError or ValueError.

    :param backend: the name of the backend, for messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def wrong_type(self, name: str, value: object, wanted: str) -> TypeError:
        """Return the error for a value of the wrong type."""
        return TypeError(
            f"{name}={value!r} is of type {type(value).__name__}; {self.backend} needs {wanted}."
        )

    def boolean(self, name: str, value: object) -> bool:
        """Check a bool."""
        if isinstance(value, bool):
            return value
        raise self.wrong_type(name, value, "True or False")

    def integer(self, name: str, value: Any, *, least: int = 1, most: int = MOST_BYTES) -> int:
        """Check an integer in a range."""
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise self.wrong_type(name, value, "an int")
        number = int(value)
        if not least <= number <= most:
            limits = range_in_words(least, most)
            raise ValueError(
                f"{name}={number} is out of range; {self.backend} needs an integer {limits}."
            )
        return number

    def timeout(self, name: str, value: Any) -> float:
        """Check a number of seconds, which may be infinite."""
        return math.inf if value == math.inf else self.seconds(name, value, least=0)

    def seconds(self, name: str, value: Any, *, least: float, most: float = math.inf) -> float:
        """Check a finite number of seconds."""
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise self.wrong_type(name, value, "a number of seconds")
        seconds = float(value)
        if not least <= seconds <= most or seconds == math.inf:
            limits = f"{least:g} or more" if most == math.inf else f"{least:g} to {most:g}"
            raise ValueError(
                f"{name}={value} is out of range; {self.backend} needs {limits} seconds."
            )
        return seconds

    def text(self, name: str, value: object, meaning: str) -> str:
        """Check a str that is not empty."""
        if not isinstance(value, str):
            raise self.wrong_type(name, value, f"a str: {meaning}")
        if not value.strip():
            raise ValueError(f"{name}={value!r} is empty; {self.backend} needs {meaning}.")
        return value.strip()

    def path(self, name: str, value: object) -> str:
        """Check the path of a file."""
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        return self.text(name, path, "the path of a file")

    def secret(self, name: str, value: object) -> Secret:
        """Check the text of a secret."""
        if not isinstance(value, str):
            # The message leaves out the value: it may be a secret, for example as bytes.
            raise TypeError(
                f"{name} is of type {type(value).__name__}; {self.backend} needs a str."
            )
        return secret.parse(value, f"the option {name}")
