"""A Ray actor as a callee: https://docs.ray.io/en/latest/ray-core/actors.html."""

from __future__ import annotations

import os
from typing import Any

import ray


class _Functions:
    """What runs in the actor."""

    def __init__(self, cores: list[int]) -> None:
        import torch  # noqa: F401 - as it is in a worker

        if cores:
            os.sched_setaffinity(0, cores)

    def noop(self) -> None:
        """Do nothing."""

    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def sink(self, value: Any) -> None:
        """Take the argument."""


class RayCallee:
    """An actor of a Ray of this process alone."""

    def __init__(self, cores: list[int]) -> None:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
        )
        self._actor: Any = ray.remote(_Functions).remote(cores)
        self.call("noop")

    def call(self, function: str, *args: Any) -> Any:
        """Call a method, and return the answer."""
        return ray.get(getattr(self._actor, function).remote(*args))

    def start(self) -> Any:
        """Call ``noop``."""
        return self._actor.noop.remote()

    def wait(self, started: Any) -> None:
        """Wait for the answer."""
        ray.get(started)

    def close(self) -> None:
        """End Ray."""
        ray.shutdown()


def open_callee(cores: list[int]) -> RayCallee:
    """Start Ray and an actor."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return RayCallee(cores)
