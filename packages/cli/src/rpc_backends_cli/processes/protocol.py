"""What a worker and the process that started it send each other: steps, news on the way, outcomes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


@dataclass
class WorkerContext:
    """What a step knows of the worker it runs in; ``memory`` keeps what a later step needs."""

    index: int
    name: str
    size: int
    memory: dict[str, Any] = field(default_factory=dict)
    connection: Connection | None = None

    def tell(self, news: Any) -> None:
        """Report something before the step is over; `Step.news` and `Workers.listen` return it."""
        assert self.connection is not None
        self.connection.send(News(news))

    def doing(self, what: str) -> None:
        """Say what the step does next, for the error if it never comes back."""
        if self.connection is not None:
            self.connection.send(Doing(what))


@dataclass(frozen=True)
class News:
    """What a step reports while it is under way."""

    value: Any


@dataclass(frozen=True)
class Doing:
    """What a step does next."""

    what: str


@dataclass(frozen=True)
class Done:
    """A step that returned ``value`` after ``seconds``."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A step that raised.

    :ivar kinds: names of the exception's classes, its own first.
    :ivar deviation: what a conformance check found, if it was one that failed.
    :ivar when: ``time.monotonic()``, which all processes of a machine share, of the moment it raised.
    :ivar notes: the exception's notes (PEP 678).
    """

    kinds: tuple[str, ...]
    text: str
    trace: str
    seconds: float
    deviation: Any = None
    when: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """A process that ended before its step was over.

    :ivar status: its exit status, negative for a signal; None if it has not ended and hears nothing.
    """

    status: int | None


class Reference(NamedTuple):
    """A function by its module, its file and its name: what finds it in another process.

    Pickle goes by the module's name alone, and pytest gives test modules names that nothing but itself
    can import.
    """

    module: str
    file: str | None
    name: str

    @classmethod
    def to(cls, function: Callable[..., Any]) -> Reference:
        """Return the reference to a function of a module."""
        module = function.__module__
        return cls(
            module, getattr(sys.modules.get(module), "__file__", None), function.__qualname__
        )

    def resolve(self) -> Callable[..., Any]:
        """Return the function itself, under a decorator that made a test of it."""
        found: Any = load(self.module, self.file)
        for part in self.name.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = getattr(found, "__wrapped__", found)
        return function


def load(name: str, file: str | None) -> Any:
    """Import a module by its name or, where nothing of that name can be imported, from its file."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
