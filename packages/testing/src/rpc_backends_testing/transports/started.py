"""Finds the transport of a backend that declares none: the one that its init handler starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rpc_backends_processes import WorkerContext, WorkerError
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import does_not_apply
from rpc_backends_testing.subject import Subject

#: Returns a new transport, from the backend's options and the group of a worker.
Make = Callable[[Any, Any], Any]

_DECLARE = "declare Backend(make_transport=...) to have it tested"


def makes(subject: Subject, groups: Groups, trial: Callable[[Make], Any]) -> Make:
    """Return a function that makes the transports of a backend, or skip the test if there is none.

    :param trial: makes a transport with such a function, for worker 0 of a new group.
    """
    if not _runs_on_agent(subject, groups):
        does_not_apply("the backend does not run on the agent of rpc-backends-agents")

    def make(options: Any, group: Any) -> Any:
        return _started(subject, options, group)

    try:
        transport = trial(make)
    except Exception as error:
        pytest.skip(f"the transport was not found: {error}; {_DECLARE}")
    with contextlib.suppress(Exception):
        transport.close(0)
    return make


def is_on_agent(me: WorkerContext, subject: Subject, url: str) -> bool:
    """Start a worker, alone, and return whether its agent is that of rpc-backends-agents."""
    from torch.distributed import rpc

    worker_tasks.join(me, subject, url, world_size=1)
    if "rpc_backends_agents" not in sys.modules:
        return False
    from rpc_backends_agents import TransportAgent

    return isinstance(rpc.api._get_current_rpc_agent(), TransportAgent)


def _runs_on_agent(subject: Subject, groups: Groups) -> bool:
    try:
        with groups.workers(1) as workers:
            runs_on_agent: bool = workers[0].call(is_on_agent, subject, groups.place())
            workers.run(worker_tasks.leave)
    except WorkerError as error:
        first = str(error).partition("\n")[0]
        pytest.skip(f"the transport was not found: no worker starts alone ({first}); {_DECLARE}")
    return runs_on_agent


def _started(subject: Subject, options: Any, group: Any) -> Any:
    """Return the transport that the init handler passes to ``start_agent``.

    :raises LookupError: it passes none.
    """
    from rpc_backends_agents import taking_transports
    from rpc_backends_core.spi.inspection import default_registry

    backend = default_registry().backend(subject.name)
    arguments = {
        "store": group.store,
        "name": group.name,
        "rank": group.rank,
        "world_size": group.world_size,
        "rpc_backend_options": options,
    }
    if backend.takes_group:
        arguments["group"] = group
    else:  # the handler forms a group itself, and the other workers of this one do not exist
        arguments |= {"rank": 0, "world_size": 1}
    failure: Exception | None = None
    with taking_transports() as taken:
        try:
            backend.init_backend_handler(**arguments)
        except Exception as error:  # after start_agent, the handler has no agent to work with
            failure = error
    if not taken:
        why = "" if failure is None else f" ({type(failure).__name__}: {failure})"
        raise LookupError(f"the init handler called no start_agent{why}")
    return taken[-1]
