"""Options: they have torch's defaults, identify their backend, and are refused if they are wrong."""

from __future__ import annotations

import contextlib
import inspect
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext, free_port
from rpc_backends_testing import worker_tasks
from rpc_backends_testing.checks import deviate, doing, expect, fact, sync
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import does_not_apply, requirement
from rpc_backends_testing.subject import Subject

pytestmark = requirement("options")

#: An option that no backend has.
UNKNOWN = "an_option_that_nobody_has"


class OtherOptions(rpc.RpcBackendOptions):
    """Options of no backend."""


# --- what workers do -----------------------------------------------------------------------------


def construct(subject: Subject, **options: Any) -> Any:
    """Construct options by torch's public function, with the options of this run."""
    member = rpc.BackendType[subject.name]
    return rpc.backend_registry.construct_rpc_backend_options(
        member, **{**subject.options, **options}
    )


def options_type(subject: Subject) -> type:
    return type(construct(subject))


def count_starts(subject: Subject) -> list[str]:
    """Return a list that gets the name of each worker that this backend starts here."""
    from rpc_backends_core.spi.inspection import default_registry

    started: list[str] = []
    backend = default_registry().backend(subject.name)
    handler = backend.init_backend_handler

    def counted(*args: Any, **kwargs: Any) -> Any:
        agent = handler(*args, **kwargs)
        started.append(kwargs["name"])
        return agent

    object.__setattr__(backend, "init_backend_handler", counted)
    return started


def name_here() -> str:
    return str(rpc.get_worker_info().name)


def start_and_call(me: WorkerContext, subject: Subject, url: str | None, **arguments: Any) -> None:
    """Start RPC with ``arguments``, check that ``subject`` started it and that it works, and stop it."""
    if url is not None:
        arguments["rpc_backend_options"] = construct(subject, init_method=url)
    started = count_starts(subject)
    shown = "".join(f", {key}={_show(value)}" for key, value in arguments.items())
    text = f"init_rpc({me.name!r}, rank={me.index}, world_size={me.size}{shown})"
    me.doing(text)
    expect(
        doing(text, lambda: rpc.init_rpc(me.name, rank=me.index, world_size=me.size, **arguments))
    ).gives(None)
    if started != [me.name]:
        raise deviate(text, f"{subject.name} is started", "another backend is started")
    peer = f"worker{(me.index + 1) % me.size}"
    expect(sync(peer, name_here)).gives(peer)
    worker_tasks.leave(me)


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{type(value).__name__}(...)"


def start_alone(me: WorkerContext, subject: Subject, url: str) -> None:
    """Start RPC correctly in a group of one, call, and stop."""
    expect(
        doing("init_rpc after a refused one", lambda: worker_tasks.join(me, subject, url))
    ).gives(None)
    expect(sync(me.name, name_here)).gives(me.name)
    worker_tasks.leave(me)


@contextlib.contextmanager
def meeting_place() -> Iterator[dict[str, str]]:
    """Yield torch's variables for the rendezvous of a program without an init method."""
    # This socket is bound and does not listen: it reserves the port for sockets with SO_REUSEADDR.
    # The kernel may choose such a port for another of them, so it is none that the kernel chooses.
    port = free_port()
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", port))
        yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def needs_no_options(subject: Subject) -> None:
    if subject.options:
        pytest.skip("it tests a start without options, and this run passes options to the backend")


# --- what they are -------------------------------------------------------------------------------


def see_defaults(me: WorkerContext, subject: Subject) -> None:
    options = expect(
        doing(
            f"construct_rpc_backend_options(BackendType.{subject.name})", lambda: construct(subject)
        )
    ).satisfies("an RpcBackendOptions", lambda options: isinstance(options, rpc.RpcBackendOptions))
    if "rpc_timeout" not in subject.options:
        expect(fact("rpc_timeout of default options", options.rpc_timeout)).gives(60.0)
    if "init_method" not in subject.options:
        expect(fact("init_method of default options", options.init_method)).gives("env://")


def test_defaults(rpc_groups: Groups) -> None:
    """Options constructed without arguments have torch's defaults: 60 s and `env://`.

    All parameters of the construct handler need defaults. Torch passes only `rpc_timeout` and
    `init_method`.
    """
    with rpc_groups.workers(1) as workers:
        workers.run(see_defaults, rpc_groups.subject)


def see_given(me: WorkerContext, subject: Subject) -> None:
    given = {"rpc_timeout": 7.5, "init_method": "file:///somewhere"}
    options = expect(
        doing(
            "construct_rpc_backend_options(..., rpc_timeout=7.5, init_method='file:///somewhere')",
            lambda: construct(subject, **given),
        )
    ).returns()
    expect(fact("rpc_timeout", options.rpc_timeout)).gives(7.5)
    expect(fact("init_method", options.init_method)).gives("file:///somewhere")


def test_given_values(rpc_groups: Groups) -> None:
    """Options keep the `rpc_timeout` and `init_method` that they are constructed with."""
    with rpc_groups.workers(1) as workers:
        workers.run(see_given, rpc_groups.subject)


def see_independent(me: WorkerContext, subject: Subject) -> None:
    first, second = (construct(subject, rpc_timeout=11) for _ in range(2))
    expect(fact("constructing twice gives the same object", first is second)).gives(False)
    first.rpc_timeout = 22
    expect(fact("rpc_timeout of the other options after one is changed", second.rpc_timeout)).gives(
        11.0
    )
    expect(fact("rpc_timeout of the changed options", first.rpc_timeout)).gives(22.0)


def test_independent(rpc_groups: Groups) -> None:
    """Options constructed twice are independent objects."""
    with rpc_groups.workers(1) as workers:
        workers.run(see_independent, rpc_groups.subject)


def see_timeout_in_force(me: WorkerContext, subject: Subject, url: str) -> None:
    worker_tasks.join(me, subject, url, rpc_timeout=45)
    expect(
        doing("rpc.get_rpc_timeout() after options with rpc_timeout=45", rpc.get_rpc_timeout)
    ).gives(45.0)
    worker_tasks.leave(me)


def test_timeout_in_force(rpc_groups: Groups) -> None:
    """The `rpc_timeout` of the options is the agent's default for calls.

    Pass it to the agent's constructor. `get_rpc_timeout` asks the agent.
    """
    with rpc_groups.workers(1) as workers:
        workers.run(see_timeout_in_force, rpc_groups.subject, rpc_groups.place())


# --- how they find their backend -----------------------------------------------------------------


def test_by_name(rpc_groups: Groups) -> None:
    """`init_rpc(backend="NAME")` without options starts the backend by `env://`."""
    subject = rpc_groups.subject
    needs_no_options(subject)
    with meeting_place() as environment, rpc_groups.workers(2, env=environment) as workers:
        workers.run(start_and_call, subject, None, backend=subject.name)


def test_by_environment(rpc_groups: Groups) -> None:
    """`RPC_BACKENDS_DEFAULT=NAME` starts the backend in a program that names none."""
    subject = rpc_groups.subject
    needs_no_options(subject)
    with meeting_place() as environment:
        environment["RPC_BACKENDS_DEFAULT"] = subject.name
        with rpc_groups.workers(2, env=environment) as workers:
            workers.run(start_and_call, subject, None)


def shared_with(me: WorkerContext, subject: Subject) -> str | None:
    """Return another backend whose options have the same type, or None."""
    from rpc_backends_core import records
    from rpc_backends_core.spi.inspection import default_registry, options_type_of

    mine = options_type(subject)
    if mine is rpc.RpcBackendOptions:
        return "every backend (it is torch's base class)"
    for record in records():
        if record.name == subject.name or record.error is not None:
            continue
        registry = default_registry()
        kinds = {options_type_of(record.name)}
        if record.state in ("loaded", "registered"):
            kinds.add(registry.backend(record.name).options_type)
        if mine in kinds:
            return record.name
    return None


def test_by_type(rpc_groups: Groups) -> None:
    """`init_rpc` with options and no backend starts the backend of that options type.

    The plugin's `Backend` declares `options_type`, and its construct handler returns exactly that type.
    """
    subject = rpc_groups.subject
    with rpc_groups.workers(2) as workers:
        sharing = workers[0].call(shared_with, subject)
        if sharing is not None:
            does_not_apply(f"its options have the same type as those of {sharing}")
        workers.run(start_and_call, subject, rpc_groups.place())


# --- what is refused -----------------------------------------------------------------------------


def refuse_other_type(me: WorkerContext, subject: Subject, url: str) -> str | None:
    """Check that options of another type are refused; return the expected type's name or None."""
    expected = options_type(subject)
    if expected is rpc.RpcBackendOptions:
        return None
    wrong = OtherOptions(rpc_timeout=5, init_method=url)
    call = doing(
        f"init_rpc(backend={subject.name!r}, rpc_backend_options=OtherOptions(...))",
        lambda: rpc.init_rpc(
            me.name, backend=subject.name, rank=0, world_size=1, rpc_backend_options=wrong
        ),
    )
    expect(call).raises(TypeError, expected.__name__)
    return expected.__name__


def test_other_type(rpc_groups: Groups) -> None:
    """Options of another type are refused with a TypeError that names the expected type."""
    with rpc_groups.workers(1) as workers:
        if workers[0].call(refuse_other_type, rpc_groups.subject, rpc_groups.place()) is None:
            does_not_apply("its options have torch's base class, so it accepts options of any type")


def test_start_after_a_refusal(rpc_groups: Groups) -> None:
    """After a start that was refused for its options, the process can start correctly."""
    subject = rpc_groups.subject
    with rpc_groups.workers(1) as workers:
        if workers[0].call(refuse_other_type, subject, rpc_groups.place()) is None:
            does_not_apply("its options have torch's base class, so it accepts options of any type")
        workers.run(see_not_running)
        workers.run(start_alone, subject, rpc_groups.place())


def see_not_running(me: WorkerContext) -> None:
    running = torch._C._distributed_rpc._is_current_rpc_agent_set()
    expect(fact("an agent is current after the refusal", running)).gives(False)


def refuse_unknown(me: WorkerContext, subject: Subject) -> None:
    from rpc_backends_core.spi.inspection import default_registry

    handler = default_registry().backend(subject.name).construct_rpc_backend_options_handler
    assert UNKNOWN not in inspect.signature(handler).parameters
    expect(
        doing(
            f"construct_rpc_backend_options(..., {UNKNOWN}=1)",
            lambda: construct(subject, **{UNKNOWN: 1}),
        )
    ).raises(TypeError, UNKNOWN)


@requirement("options", capability=Capability.STRICT_OPTIONS)
def test_unknown_keyword(rpc_groups: Groups) -> None:
    """An unknown keyword is refused with a TypeError that names it.

    A construct handler with `**kwargs` must check them.
    """
    with rpc_groups.workers(1) as workers:
        workers.run(refuse_unknown, rpc_groups.subject)


def refuse_negative(me: WorkerContext, subject: Subject, url: str) -> None:
    expect(
        doing(
            "init_rpc with options of rpc_timeout=-1",
            lambda: worker_tasks.join(me, subject, url, rpc_timeout=-1),
        )
    ).raises(Exception, "(?i)timeout")


def test_negative_timeout(rpc_groups: Groups) -> None:
    """A negative `rpc_timeout` is refused, at the latest by `init_rpc`."""
    with rpc_groups.workers(1) as workers:
        workers.run(refuse_negative, rpc_groups.subject, rpc_groups.place())
        workers.run(see_not_running)
        workers.run(start_alone, rpc_groups.subject, rpc_groups.place())


def refuse_wrong_values(
    me: WorkerContext, subject: Subject, url: str, wrong: dict[str, Any]
) -> None:
    key, value = next(iter(wrong.items()))
    expect(
        doing(
            f"init_rpc with options of {key}={value!r}",
            lambda: worker_tasks.join(me, subject, **{"url": url, **wrong}),
        )
    ).raises(TypeError)


def test_wrong_value(rpc_groups: Groups) -> None:
    """An `rpc_timeout` that is not a number is refused with a TypeError, at the latest by `init_rpc`."""
    with rpc_groups.workers(1) as workers:
        workers.run(
            refuse_wrong_values, rpc_groups.subject, rpc_groups.place(), {"rpc_timeout": "soon"}
        )
        workers.run(see_not_running)
