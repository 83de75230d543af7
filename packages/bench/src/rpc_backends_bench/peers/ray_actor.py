"""A Ray actor as a callee: https://docs.ray.io/en/latest/ray-core/actors.html."""

from __future__ import annotations

import os
from typing import Any

import ray


class _Functions:
    """The functions that run in the actor."""

    def __init__(self, cores: list[int]) -> None:
        import torch  # noqa: F401 - a worker has torch imported too

        if cores:
            os.sched_setaffinity(0, cores)

    def noop(self) -> None:
        """Do nothing."""

    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def sink(self, value: Any) -> None:
        """Drop the argument."""


class RayCallee:
    """A Ray actor; only this process uses its Ray instance."""

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
        """Call a method and return the result."""
        return ray.get(getattr(self._actor, function).remote(*args))

    def start(self) -> Any:
        """Start a call of ``noop``."""
        return self._actor.noop.remote()

    def wait(self, started: Any) -> None:
        """Wait for the result of a started call."""
        ray.get(started)

    def close(self) -> None:
        """End Ray."""
        ray.shutdown()


def open_callee(cores: list[int]) -> RayCallee:
    """Start Ray and an actor."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return RayCallee(cores)
