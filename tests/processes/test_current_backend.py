"""Which backend runs: `current_backend()`, the log of a start, and the class of the agent."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from rpc_backends_core import current_backend
from support import steps
from support.packages import write_package
from support.workers import WorkerContext, Workers

PLUGINS = ("TENSORPIPE", "FAULTY_TENSORPIPE", "ZEROMQ", "UCX")
RECORDING = {"RPC_BACKENDS_RECORDER": "on"}
RULE = '[[rule]]\nwhat = "delay"\nseconds = 0.001\n'

REPLACER = """
    import torch.distributed as dist
    from torch.distributed import rpc
    from rpc_backends_core import hookimpl

    class Replacement(rpc.TensorPipeAgent):
        pass

    @hookimpl
    def rpc_backends_agent(agent):
        options = rpc.TensorPipeRpcBackendOptions()
        return Replacement(dist.HashStore(), agent.get_worker_info().name, 0, 1, options, {}, [])
"""


@dataclass(frozen=True)
class Facts:
    """What a worker says of its backend; `options` is the name of their class."""

    name: str
    distribution: str | None
    version: str | None
    options: str
    in_front: tuple[str, ...]
    hooks: tuple[str, ...]
    address: str | None
    encryption: str


def facts(_: WorkerContext) -> Facts | None:
    current = current_backend()
    if current is None:
        return None
    return Facts(**{**vars(current), "options": type(current.options).__name__})


def join_and_log(me: WorkerContext, url: str, **arguments: Any) -> list[str]:
    """Join a group; return the messages of level INFO that the core has logged."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("rpc_backends")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        steps.join(me, url, **arguments)
    finally:
        logger.removeHandler(handler)
    return messages


def classes(_: WorkerContext) -> tuple[str, str, bool, bool]:
    """Return the type and the repr of the agent, and whether it is an instance of its backend's class."""
    agent: Any = rpc.api._get_current_rpc_agent()
    inner = getattr(agent, "inner", agent)
    return (
        repr(type(agent)),
        repr(agent),
        isinstance(agent, type(inner)),
        type(agent) is type(inner),
    )


def class_names(me: WorkerContext) -> tuple[str, str]:
    return classes(me)[:2]


@pytest.mark.parametrize("backend", PLUGINS)
def test_the_current_backend_is_named_with_its_surroundings(url: str, backend: str) -> None:
    with Workers(1, env=RECORDING) as workers:
        assert workers.run(facts) == [None]
        (messages,) = workers.run(join_and_log, url, backend=backend)
        (current,) = workers.run(facts)
        ((type_text, text, is_instance, is_plain),) = workers.run(classes)
        workers.run(steps.leave)
        assert workers.run(facts) == [None]

    assert current is not None
    assert current.name == backend
    assert current.distribution == f"rpc-backend-{backend.lower().replace('_', '-')}"
    assert current.options.endswith("RpcBackendOptions")
    assert current.in_front == ("recorder",)
    assert "rpc-backends-inspect" in current.hooks
    assert current.address
    assert current.encryption == ("TLS 1.3" if backend == "ZEROMQ" else "none")
    assert messages == [
        f"RPC worker 'worker0' (rank 0) runs on {backend} ({current.distribution} {current.version}); "
        f"address: {current.address}; encryption: {current.encryption}; in front: recorder; "
        f"hooks: {', '.join(current.hooks)}"
    ]
    engine = backend.replace("_", "").casefold()
    assert engine in type_text.casefold()
    assert engine in text.casefold()
    assert is_instance  # torch and programs find out with isinstance what an agent can do
    assert not is_plain


KINDS = [(backend, 1) for backend in PLUGINS]
KINDS += [(backend, None) for backend in PLUGINS if backend != "FAULTY_TENSORPIPE"]


@pytest.mark.parametrize(("backend", "world_size"), KINDS)
def test_the_class_of_an_agent_names_its_engine(
    url: str, backend: str, world_size: int | None
) -> None:
    with Workers(1) as workers:
        workers.run(steps.join, url, backend=backend, world_size=world_size)
        texts = workers.run(class_names)[0]
        workers.run(steps.leave)

    engine = backend.replace("_", "").casefold()
    assert [text for text in texts if engine not in text.casefold()] == []


def test_torchs_own_backend_is_named_too(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "TENSORPIPE"}) as workers:
        (messages,) = workers.run(join_and_log, url)
        (current,) = workers.run(facts)
        workers.run(steps.leave)

    assert current is not None
    assert (current.name, current.distribution) == ("TENSORPIPE", "torch")
    assert (current.address, current.encryption) == (None, "not declared")
    assert len(messages) == 1
    assert "runs on TENSORPIPE (torch 2." in messages[0]
    assert "address: not known; encryption: not declared" in messages[0]


def test_interceptors_are_listed_from_the_program_to_the_network(url: str, tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULE)
    env = {**RECORDING, "RPC_BACKENDS_FAULTS": str(tmp_path / "rules.toml")}
    with Workers(1, env=env) as workers:
        workers.run(steps.join, url, backend="ZEROMQ")
        (current,) = workers.run(facts)
        workers.run(steps.leave)

    assert current is not None
    assert current.in_front == ("recorder", "faults")


def test_an_agent_that_a_hook_has_replaced_is_shown_by_its_class(url: str, tmp_path: Path) -> None:
    wheel = write_package(
        tmp_path,
        "rpc-hooks-sample",
        modules={"rpc_hooks_sample.py": REPLACER},
        entry_points={"rpc.backends.hooks": {"sample": "rpc_hooks_sample"}},
    )
    with Workers(1) as workers:
        workers.run(steps.put_on_path, wheel)
        workers.run(steps.join, url)
        (current,) = workers.run(facts)
        workers.run(steps.leave)

    assert current is not None
    assert current.in_front == ("Replacement",)
    assert "rpc-hooks-sample" in current.hooks


def test_no_backend_runs_after_a_failed_start(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join, url, backend="ZEROMQ", world_size=-1)
        assert failure.text
        assert workers.run(facts) == [None]


def init_on_store(me: WorkerContext, folder: Path) -> str:
    """Call `init_backend` as a program of its own does, without `init_rpc`."""
    import torch.distributed as dist

    options = rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.ZEROMQ)
    rpc.backend_registry.init_backend(
        rpc.BackendType.ZEROMQ,
        store=dist.FileStore(str(folder / "own"), 1),
        name="w0",
        rank=0,
        world_size=1,
        rpc_backend_options=options,
    )
    current = current_backend()
    assert current is not None
    assert current.options is options
    return current.name


def test_a_backend_that_the_program_has_started_itself_is_named(tmp_path: Path) -> None:
    with Workers(1) as workers:
        assert workers.run(init_on_store, tmp_path) == ["ZEROMQ"]
