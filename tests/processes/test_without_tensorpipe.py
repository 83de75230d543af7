"""Programs for TENSORPIPE run on a torch that was built without TensorPipe. The tests look at the agent.

`support/without_tensorpipe` makes torch look like such a build.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

from support import steps
from support.workers import WorkerContext, without_tensorpipe, without_tensorpipe_environ
from support.workers import Workers as _Workers

pytestmark = pytest.mark.slow

LINE = "This torch was built without TensorPipe: asked for {}, starting {}"


@pytest.fixture
def start_workers() -> Callable[..., _Workers]:
    """Return a function that makes workers whose torch has no TensorPipe."""
    return partial(_Workers, template=without_tensorpipe())


class Seen(NamedTuple):
    """What a test sees of one start."""

    backend: str
    timeout: float
    threads: str
    logged: list[tuple[str, str]]


def start(
    me: WorkerContext,
    url: str,
    arguments: dict[str, Any],
    options: dict[str, Any] | None = None,
) -> Seen:
    """Start RPC as a program for TENSORPIPE does, call all workers, and stop.

    :param options: more arguments of ``TensorPipeRpcBackendOptions``; None passes no options.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=url.rpartition(":")[2])
    if options is not None:
        options = rpc.TensorPipeRpcBackendOptions(**options)  # type: ignore[assignment]
        arguments = {**arguments, "rpc_backend_options": options}
    logged = logs()
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, **arguments)
    seen = observe(logged)
    assert steps.call_all(me) == {name: name for name in steps.members(me)}
    rpc.shutdown()
    return seen


def logs() -> list[tuple[str, str]]:
    """Return a list to which each line is added that is logged from now on, with its level."""
    logged: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    # Every start logs what runs; these tests are about the line before it.
    handler.addFilter(lambda record: not record.msg.startswith("RPC worker %r (rank %d) runs on"))
    for name in ("rpc_backends", "torch.distributed.rpc"):
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("rpc_backends").setLevel(logging.INFO)
    return logged


def observe(logged: list[tuple[str, str]]) -> Seen:
    from rpc_backends_core.spi import current_session

    assert not hasattr(rpc, "TensorPipeAgent")
    session = current_session()
    assert session is not None
    threads = rpc.api._get_current_rpc_agent().get_debug_info()["agent.thread_pool_size"]
    return Seen(session.resolved.name, rpc.get_rpc_timeout(), threads, logged)


# --- every way to ask for TENSORPIPE -------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "asked"),
    [
        ({}, None, "no backend"),
        ({"backend": "TENSORPIPE"}, None, "TENSORPIPE"),
        ({}, {"rpc_timeout": 7}, "the backend of its TensorPipeRpcBackendOptions"),
        ({"backend": "tensorpipe"}, {}, "tensorpipe"),
    ],
    ids=["plain", "name", "options", "name and options"],
)
def test_a_start_on_tensorpipe_starts_zeromq(
    start_workers: Callable[..., _Workers],
    tmp_path: Path,
    arguments: dict[str, Any],
    options: dict[str, Any] | None,
    asked: str,
) -> None:
    with steps.meeting("tcp", tmp_path) as where, start_workers(2) as workers:
        seen = workers.run(start, where.url, arguments, options)

    assert [facts.backend for facts in seen] == ["ZEROMQ"] * 2
    assert seen[0].logged == [("INFO", LINE.format(asked, "ZEROMQ"))]


def test_the_programs_options_are_carried_over(start_workers: Callable[..., _Workers]) -> None:
    options = {"rpc_timeout": 7.5, "num_worker_threads": 3, "_transports": ["uv"]}
    with start_workers(1) as workers:
        seen = workers[0].call(start, ":0", {"backend": "TENSORPIPE"}, options)

    assert (seen.backend, seen.timeout, seen.threads) == ("ZEROMQ", 7.5, "3")
    (text,) = [text for level, text in seen.logged if level == "WARNING"]
    assert (
        "ZEROMQ runs without _transports, which the program's TensorPipeRpcBackendOptions" in text
    )


def test_options_made_by_the_registry_and_torchs_internal_start_work(
    start_workers: Callable[..., _Workers],
) -> None:
    with start_workers(1) as workers:
        seen = workers[0].call(start_on_own_store)

    assert (seen.backend, seen.timeout, seen.threads) == ("ZEROMQ", 7.5, "3")


def start_on_own_store(me: WorkerContext) -> Seen:
    member = rpc.BackendType.TENSORPIPE
    options = rpc.backend_registry.construct_rpc_backend_options(
        member, rpc_timeout=7.5, num_worker_threads=3
    )
    assert type(options) is rpc.TensorPipeRpcBackendOptions
    rpc._init_rpc_backend(member, dist.HashStore(), me.name, 0, 1, options)
    seen = observe([])
    rpc.shutdown()
    return seen


def test_ucx_takes_its_place_if_zeromq_may_not(start_workers: Callable[..., _Workers]) -> None:
    with start_workers(1, env={"RPC_BACKENDS_DENY": "ZEROMQ"}) as workers:
        seen = workers[0].call(start, ":0", {"backend": "TENSORPIPE"})

    assert seen.backend == "UCX"
    assert seen.logged == [("INFO", LINE.format("TENSORPIPE", "UCX"))]


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_DEFAULT", "RPC_BACKENDS_OVERRIDE"])
def test_a_variable_that_names_tensorpipe_starts_zeromq(
    start_workers: Callable[..., _Workers], variable: str
) -> None:
    with start_workers(1, env={variable: "TENSORPIPE"}) as workers:
        seen = workers[0].call(start, ":0", {})

    assert seen.backend == "ZEROMQ"
    assert seen.logged == [("INFO", LINE.format(f"{variable}=TENSORPIPE", "ZEROMQ"))]


def test_without_another_backend_the_error_says_what_to_install(
    start_workers: Callable[..., _Workers],
) -> None:
    with start_workers(1, env={"RPC_BACKENDS_DENY": "ZEROMQ,UCX"}) as workers:
        (failure,) = workers.errors(start, ":0", {})

        assert failure.kinds[0] == "BackendLoadError"
        assert "This torch was built without TensorPipe" in failure.text
        assert "no installed backend can take its place and serve groups with a world_size." in (
            failure.text
        )
        assert "pip install rpc-backend-zeromq" in failure.text
        assert "--find-links FOLDER" in failure.text
        assert workers.run(steps.is_running) == [False]


def test_faulty_tensorpipe_is_refused(start_workers: Callable[..., _Workers]) -> None:
    with start_workers(1) as workers:
        (failure,) = workers.errors(start, ":0", {"backend": "FAULTY_TENSORPIPE"})

        assert failure.kinds[0] == "BackendLoadError"
        assert "this torch was built without TensorPipe" in failure.text


# --- what a program does after its start ---------------------------------------------------------


@pytest.fixture
def group(start_workers: Callable[..., _Workers], url: str) -> Iterator[_Workers]:
    """Yield two workers whose group has the device maps of TENSORPIPE's options."""
    maps = {"worker0": {"cpu": "cpu"}, "worker1": {"cpu": "cpu"}}
    with start_workers(2) as workers:
        workers.run(partial(steps.join, device_maps=maps, _transports=None), url)
        yield workers
        workers.run(steps.leave)


def test_device_maps_are_carried_over(group: _Workers) -> None:
    assert group[0].call(device_map) == {torch.device("cpu"): torch.device("cpu")}


def device_map(me: WorkerContext) -> Any:
    agent = rpc.api._get_current_rpc_agent()
    return agent._get_device_map(rpc.get_worker_info("worker1"))


def test_a_remote_module_is_trained_by_an_optimizer(group: _Workers) -> None:
    before, after = group[0].call(train)
    assert torch.equal(after, before - 0.5)


def train(me: WorkerContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a step of size 0.5 in a module of the other worker; return its weights before and after."""
    module = RemoteModule("worker1/cpu", torch.nn.Linear, (3, 1))
    parameters = module.remote_parameters()
    before = [parameter.to_here().detach().clone() for parameter in parameters]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.5)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [module.forward(torch.ones(1, 3)).sum()])
        optimizer.step(context)
    return before[0], parameters[0].to_here().detach()


def test_a_dynamic_group_forms_and_shrinks(
    start_workers: Callable[..., _Workers], url: str
) -> None:
    with start_workers(2) as workers:
        workers[0].call(steps.join_dynamic, url, _transports=None)
        workers[1].call(steps.join_dynamic, url, _transports=None)
        assert list(workers[0].call(steps.members)) == ["worker0", "worker1"]
        workers[1].call(steps.leave)
        assert list(workers[0].call(steps.members)) == ["worker0"]
        workers[0].call(steps.leave)


# --- packages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["rpc_backend_tensorpipe", "rpc_backend_faulty_tensorpipe"])
def test_a_package_that_needs_tensorpipe_says_so(
    start_workers: Callable[..., _Workers], package: str
) -> None:
    with start_workers(1) as workers:
        (failure,) = workers.errors(import_package, package)

    assert failure.kinds[0] == "ImportError"
    assert "cannot be used: this torch was built without TensorPipe" in failure.text


def import_package(me: WorkerContext, package: str) -> None:
    __import__(package)


def doctor(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rpc_backends_cli", "doctor", *arguments],
        env={**without_tensorpipe_environ(), "COLUMNS": "300", **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_command_shows_what_is_unavailable() -> None:
    done = doctor("TENSORPIPE", "--no-calls")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "built without TensorPipe" in done.stdout
    assert "init_rpc starts another installed backend in its place" in done.stdout


@pytest.mark.parametrize("names", [(), ("TENSORPIPE",)], ids=["all", "one name"])
def test_a_torch_on_which_no_backend_starts_is_a_problem(names: tuple[str, ...]) -> None:
    done = doctor(*names, "--no-calls", RPC_BACKENDS_DENY="ZEROMQ,UCX")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "no installed backend can take its place" in done.stdout
    assert "Install one: pip install rpc-backend-zeromq, or pip install rpc-backend-ucx" in (
        done.stdout
    )
    assert "1 problem" in done.stdout
