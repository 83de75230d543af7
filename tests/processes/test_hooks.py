"""Hook packages wrap the start of every backend: of plugins, torch's own and old-style ones.

Each package is a wheel on ``sys.path``, found by its entry point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.packages import write_package
from support.workers import WorkerContext, Workers

OBSERVER = """
    from rpc_backends_core import hookimpl

    SEEN = []

    @hookimpl(wrapper=True)
    def rpc_backends_construct_options(backend, rpc_timeout):
        options = yield
        SEEN.append(("options", backend, rpc_timeout, type(options).__name__))
        return options

    @hookimpl(wrapper=True)
    def rpc_backends_init_backend(backend, kwargs):
        agent = yield
        SEEN.append(("init", backend, kwargs["name"], type(agent).__name__))
        return agent

    @hookimpl(wrapper=True)
    def rpc_backends_agent(backend, agent):
        agent = yield
        SEEN.append(("agent", backend, agent.get_worker_info().name, type(agent).__name__))
        return agent
"""

REPLACER = """
    import torch.distributed as dist
    from torch.distributed import rpc
    from rpc_backends_core import hookimpl

    class Replacement(rpc.TensorPipeAgent):
        pass

    @hookimpl
    def rpc_backends_agent(agent):
        options = rpc.TensorPipeRpcBackendOptions()
        name = agent.get_worker_info().name
        return Replacement(dist.HashStore(), name, 0, 1, options, {}, [])
"""

BROKEN = """
    from rpc_backends_core import hookimpl

    @hookimpl
    def rpc_backends_agent(agent):
        raise ZeroDivisionError("a defect")
"""

UNLOADABLE = """
    raise ZeroDivisionError("a defect")
"""


def package(folder: Path, source: str) -> Path:
    """Write a hook package."""
    return write_package(
        folder,
        "rpc-hooks-sample",
        modules={"rpc_hooks_sample.py": source},
        entry_points={"rpc.backends.hooks": {"sample": "rpc_hooks_sample"}},
    )


def new_records(me: WorkerContext) -> list[tuple[Any, ...]]:
    """Return what the observer has recorded since the last call."""
    import rpc_hooks_sample

    records = list(rpc_hooks_sample.SEEN)
    rpc_hooks_sample.SEEN.clear()
    return records


def register_old_style(me: WorkerContext) -> None:
    handlers = rpc.BackendType.TENSORPIPE.value
    rpc.backend_registry.register_backend("OLD", *handlers)


@pytest.mark.parametrize(
    "backend", ["TENSORPIPE", "FAULTY_TENSORPIPE", "torch's TENSORPIPE", "OLD"]
)
def test_hooks_see_every_start(url: str, tmp_path: Path, backend: str) -> None:
    own = backend == "torch's TENSORPIPE"
    name = "TENSORPIPE" if own else backend
    env = {"RPC_BACKENDS_DENY": "TENSORPIPE"} if own else {}
    with Workers(2, env=env) as workers:
        workers.run(steps.put_on_path, package(tmp_path, OBSERVER))
        if backend == "OLD":
            workers.run(register_old_style)

        workers.run(steps.join, url, backend=name, rpc_timeout=9)

        for index, records in enumerate(workers.run(new_records)):
            what = [record[0] for record in records]
            assert what == ["options", "agent", "init"]
            assert {record[1] for record in records} == {name}
            assert records[0][2] == 9
            assert records[1][2] == records[2][2] == f"worker{index}"
            assert (records[1][3] == "TensorPipeAgent") is own
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
        workers.run(steps.leave)


@pytest.mark.parametrize("own", [False, True], ids=["plugin", "torch's own"])
def test_a_hook_may_replace_the_agent(url: str, tmp_path: Path, own: bool) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "TENSORPIPE"} if own else {}) as workers:
        workers.run(steps.put_on_path, package(tmp_path, REPLACER))

        workers.run(steps.join, url)

        assert workers.run(agent_type) == ["Replacement"]
        assert workers.run(steps.call_all) == [{"worker0": "worker0"}]
        workers.run(steps.leave)
        assert workers[0].end() == 0


def agent_type(me: WorkerContext) -> str:
    return type(rpc.api._get_current_rpc_agent()).__name__


def test_a_failing_hook_fails_the_start(url: str, tmp_path: Path) -> None:
    """A failing hook makes the start fail. Once its package is uninstalled, RPC starts."""
    with Workers(2) as workers:
        folder = package(tmp_path, BROKEN)
        workers.run(steps.put_on_path, folder)

        for failure in workers.errors(steps.join, url):
            assert failure.kinds[0] == "HookError"
            assert (
                "the hook rpc_backends_agent of the RPC hook package rpc-hooks-samp" in failure.text
            )
            assert "ZeroDivisionError: a defect" in failure.text

        workers.run(take_off_path, folder)
        workers.run(steps.join, url)
        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
        workers.run(steps.leave)


def take_off_path(me: WorkerContext, folder: Path) -> None:
    """Make a package that `put_on_path` has added look uninstalled."""
    import sys

    import rpc_backends_core

    sys.path.remove(str(folder))
    rpc_backends_core.refresh()


def test_an_unloadable_package_is_skipped_with_a_warning(url: str, tmp_path: Path) -> None:
    with Workers(2) as workers:
        workers.run(steps.put_on_path, package(tmp_path, UNLOADABLE))

        workers.run(steps.join, url)

        assert workers.run(steps.call_all) == [{"worker0": "worker0", "worker1": "worker1"}] * 2
        for worker in workers:
            assert "HookWarning: the RPC hook package rpc-hooks-sample 1.0" in worker.output
            assert "ZeroDivisionError: a defect" in worker.output
        workers.run(steps.leave)


def test_its_variable_makes_an_unloadable_package_an_error(url: str, tmp_path: Path) -> None:
    with Workers(2, env={"RPC_BACKENDS_SAMPLE": "1"}) as workers:
        workers.run(steps.put_on_path, package(tmp_path, UNLOADABLE))

        for failure in workers.errors(steps.join, url):
            assert failure.kinds[0] == "HookError"
            assert failure.text.startswith(
                "RPC_BACKENDS_SAMPLE is set, and the RPC hook package rpc-"
            )
            assert "Unset RPC_BACKENDS_SAMPLE to run without it." in failure.text
