"""Options that are checked when they are made and do not change later, and the checks."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any, Self

from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents.common import secret
from rpc_backends_agents.common.secret import Secret
from rpc_backends_core.spi import check_option_names

_MOST_BYTES = 1 << 61


class StrictOptions(RpcBackendOptions):
    """The base class of a backend's options.

    As with torch's options, only ``rpc_timeout`` and ``init_method`` can be changed later, and the
    options cannot be pickled.

    :cvar BACKEND: the name of the backend.
    """

    BACKEND = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the options; :raises TypeError: an option is unknown."""
        check_option_names(cls.BACKEND, cls.__init__, kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("rpc_timeout", "init_method"):
            raise AttributeError(
                f"{name} cannot be changed on existing {self.BACKEND} options; pass it when you create "
                "them. Only rpc_timeout and init_method can be changed."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        shown = {"rpc_timeout": self.rpc_timeout, "init_method": self.init_method, **self.__dict__}
        values = ", ".join(
            f"{name}={value!r}" for name, value in shown.items() if value is not None
        )
        return f"{type(self).__name__}({values})"


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

    def boolean(self, name: str, value: object) -> bool | None:
        """Check a bool, or None."""
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong_type(name, value, "True or False")

    def integer(self, name: str, value: Any) -> int:
        """Check an integer from 1 to 2**61."""
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise self.wrong_type(name, value, "an int")
        number = int(value)
        if not 1 <= number <= _MOST_BYTES:
            raise ValueError(
                f"{name}={number} is out of range; {self.backend} needs an integer from 1 to 2**61."
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

    def optional_text(self, name: str, value: object, meaning: str) -> str | None:
        """Check a str that is not empty, or None."""
        return None if value is None else self.text(name, value, meaning)

    def path(self, name: str, value: object) -> str | None:
        """Check the path of a file, or None."""
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        return None if value is None else self.text(name, path, "the path of a file")

    def secret(self, value: object) -> Secret | None:
        """Check the text of a secret, or None."""
        if value is None:
            return None
        if not isinstance(value, str):
            # The message leaves out the value: it may be a secret, for example as bytes.
            raise TypeError(
                f"secret is of type {type(value).__name__}; {self.backend} needs a str."
            )
        return secret.parse(value, "the option secret")
