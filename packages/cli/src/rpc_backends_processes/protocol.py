"""The messages between a worker and its parent process: steps, news during a step, outcomes."""

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
    """The worker that a step runs in, as the step sees it.

    :ivar index: the worker's number, from 0.
    :ivar name: the worker's name, ``worker0`` and so on.
    :ivar size: how many workers were started together.
    :ivar memory: values that a step keeps for later steps.
    :ivar connection: the connection to the parent process.
    """

    index: int
    name: str
    size: int
    memory: dict[str, Any] = field(default_factory=dict)
    connection: Connection | None = None

    def tell(self, news: Any) -> None:
        """Report a value before the step ends; `Step.news` and `Workers.listen` return it."""
        assert self.connection is not None
        self.connection.send(News(news))

    def doing(self, what: str) -> None:
        """Report what the step does next; the error shows it if the step never returns."""
        if self.connection is not None:
            self.connection.send(Doing(what))


@dataclass(frozen=True)
class News:
    """A value that a step reports while it runs."""

    value: Any


@dataclass(frozen=True)
class Doing:
    """A description of what a step does next."""

    what: str


@dataclass(frozen=True)
class Done:
    """The outcome of a step that returned ``value`` after ``seconds``."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Failure:
    """The outcome of a step that raised.

    :ivar kinds: the names of the exception's class and of its base classes, in method resolution order.
    :ivar text: the exception's text.
    :ivar trace: the traceback.
    :ivar seconds: how long the step ran.
    :ivar details: the exception's attribute `worker_details`, which is sent with it; None without one.
    :ivar when: the time of the exception by ``time.monotonic()``, which all processes of a machine share.
    :ivar notes: the exception's notes (PEP 678).
    """

    kinds: tuple[str, ...]
    text: str
    trace: str
    seconds: float
    details: Any = None
    when: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """The outcome of a step whose process ended before the step did.

    :ivar status: the exit status, negative for a signal; None if the process has closed its connection
        but not ended.
    """

    status: int | None


class Reference(NamedTuple):
    """A reference to a function that another process can resolve: its module, file and name.

    Pickle uses only the module's name, and pytest gives test modules names that only pytest can import.
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
        """Return the function, without the decorator that made a test of it."""
        value: Any = load(self.module, self.file)
        for part in self.name.split("."):
            value = getattr(value, part)
        function: Callable[..., Any] = getattr(value, "__wrapped__", value)
        return function


def load(name: str, file: str | None) -> Any:
    """Import a module by its name or, if that fails, from its file."""
    try:
        return importlib.import_module(name)  # waits if another thread is importing it
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
