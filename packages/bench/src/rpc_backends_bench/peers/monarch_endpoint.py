"""An endpoint of a Monarch actor as a callee: https://meta-pytorch.org/monarch/."""

from __future__ import annotations

import os
from typing import Any

from monarch.actor import Actor, endpoint, shutdown_context, this_host


class _Functions(Actor):
    """What runs in the actor's process."""

    def __init__(self, cores: list[int]) -> None:
        import torch  # noqa: F401 - as it is in a worker

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
        """Take the argument."""


class MonarchCallee:
    """An actor in a process of its own on this host."""

    def __init__(self, cores: list[int]) -> None:
        processes: Any = this_host().spawn_procs(per_host={"processes": 1})
        self._actor: Any = processes.spawn("callee", _Functions, cores)
        self.call("noop")

    def call(self, function: str, *args: Any) -> Any:
        """Call an endpoint, and return the answer."""
        return getattr(self._actor, function).call_one(*args).get()

    def start(self) -> Any:
        """Call ``noop``."""
        return self._actor.noop.call_one()

    def wait(self, started: Any) -> None:
        """Wait for the answer."""
        started.get()

    def close(self) -> None:
        """End the actor's process."""
        shutdown_context().get()


def open_callee(cores: list[int]) -> MonarchCallee:
    """Start an actor."""
    return MonarchCallee(cores)
