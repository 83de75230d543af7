"""An endpoint of a Monarch actor as a callee: https://meta-pytorch.org/monarch/."""

from __future__ import annotations

import os
from typing import Any

from monarch.actor import Actor, endpoint, shutdown_context, this_host


class _Functions(Actor):
    """The functions that run in the actor's process."""

    def __init__(self, cores: list[int]) -> None:
        import torch  # noqa: F401 - a worker has torch imported too

        if cores:
            os.sched_setaffinity(0, cores)

    @endpoint
    def noop(self) -> None:
        """Do nothing."""

    @endpoint
    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @endpoint
    def sink(self, value: Any) -> None:
        """Drop the argument."""


class MonarchCallee:
    """A Monarch actor in another process on this host."""

    def __init__(self, cores: list[int]) -> None:
        processes: Any = this_host().spawn_procs(per_host={"processes": 1})
        self._actor: Any = processes.spawn("callee", _Functions, cores)
        self.call("noop")

    def call(self, function: str, *args: Any) -> Any:
        """Call an endpoint and return the result."""
        return getattr(self._actor, function).call_one(*args).get()

    def start(self) -> Any:
        """Start a call of ``noop``."""
        return self._actor.noop.call_one()

    def wait(self, started: Any) -> None:
        """Wait for the result of a started call."""
        started.get()

    def close(self) -> None:
        """End the actor's process."""
        shutdown_context().get()


def open_callee(cores: list[int]) -> MonarchCallee:
    """Start an actor."""
    return MonarchCallee(cores)
