"""`RPC_BACKENDS_OVERRIDE` replaces the backend that a program names. The tests look at the agent."""

from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

FAULTY = {"RPC_BACKENDS_OVERRIDE": "FAULTY_TENSORPIPE"}
LINE = "RPC_BACKENDS_OVERRIDE: asked for {}, starting FAULTY_TENSORPIPE"


class Seen(NamedTuple):
    """What a test sees of one start."""

    faulty: bool
    timeout: float
    threads: str
    logged: list[tuple[str, str]]


def start(
    me: WorkerContext, arguments: dict[str, Any], options: dict[str, Any] | None = None
) -> Seen:
    """Start RPC as a program with a hard-coded backend does, call all workers, and stop.

    The address is set in the environment, where a start without options looks for it.

    :param options: arguments of ``TensorPipeRpcBackendOptions``; None passes no options.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if options is not None:
        arguments = {**arguments, "rpc_backend_options": rpc.TensorPipeRpcBackendOptions(**options)}
    logged: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    # Every start logs what runs; these tests are about the line before it.
    handler.addFilter(lambda record: not record.msg.startswith("RPC worker %r (rank %d) runs on"))
    for name in ("rpc_backends", "torch.distributed.rpc"):
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("rpc_backends").setLevel(logging.INFO)
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, **arguments)
    seen = observe(logged)
    assert steps.call_all(me) == {name: name for name in steps.members(me)}
    rpc.shutdown()
    return seen


def observe(logged: list[tuple[str, str]]) -> Seen:
    agent = rpc.api._get_current_rpc_agent()
    kinds = [kind.__name__ for kind in type(agent).__mro__]
    threads = agent.get_debug_info()["agent.thread_pool_size"]
    return Seen("FaultyTensorPipeAgent" in kinds, rpc.get_rpc_timeout(), threads, logged)


# --- every way to name a backend -----------------------------------------------------------------


def test_a_backend_name_is_overridden() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start, {"backend": "TENSORPIPE"})

        assert seen.faulty
        assert seen.logged == [("INFO", LINE.format("TENSORPIPE"))]


def test_a_backend_type_member_is_overridden() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start_by_member)

        assert seen.faulty
        assert seen.logged == [("INFO", LINE.format("TENSORPIPE"))]


def start_by_member(me: WorkerContext) -> Seen:
    return start(me, {"backend": rpc.BackendType.TENSORPIPE})


def test_options_without_a_backend_are_overridden() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start, {}, {"num_worker_threads": 3})

        assert seen.faulty
        # Torch's warning that the options choose the backend is left out, because they do not.
        assert seen.logged == [
            ("INFO", LINE.format("the backend of its TensorPipeRpcBackendOptions"))
        ]


def test_a_start_with_defaults_is_overridden() -> None:
    with Workers(1, env={**FAULTY, "RPC_BACKENDS_DEFAULT": "TENSORPIPE"}) as workers:
        seen = workers[0].call(start, {})

        assert seen.faulty
        assert seen.logged == [("INFO", LINE.format("no backend"))]


def test_torchs_internal_start_is_overridden() -> None:
    with Workers(1, env=FAULTY) as workers:
        assert workers[0].call(start_on_own_store).faulty


def start_on_own_store(me: WorkerContext) -> Seen:
    rpc._init_rpc_backend(
        backend=rpc.BackendType.TENSORPIPE,
        store=dist.HashStore(),
        name=me.name,
        rank=0,
        world_size=1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(),
    )
    seen = observe([])
    rpc.shutdown()
    return seen


def test_the_named_backend_need_not_be_installed() -> None:
    with Workers(1, env=FAULTY) as workers:
        assert workers[0].call(start, {"backend": "CARRIER_PIGEON"}).faulty


def test_an_empty_variable_changes_nothing() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": ""}) as workers:
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, {"_transports": ["uv"]})

        assert not seen.faulty
        assert seen.logged == []


def test_a_group_works_over_the_override(url: str) -> None:
    with Workers(2, env=FAULTY) as workers:
        options = {"init_method": url, "num_worker_threads": 4}
        seen = workers.run(start, {"backend": "TENSORPIPE"}, options)

        assert [facts.faulty for facts in seen] == [True, True]


# --- the program's options -----------------------------------------------------------------------


def test_timeout_and_threads_reach_the_agent() -> None:
    with Workers(1, env=FAULTY) as workers:
        options = {"rpc_timeout": 7.5, "num_worker_threads": 3}
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, options)

        assert (seen.faulty, seen.timeout, seen.threads) == (True, 7.5, "3")


def test_options_made_by_the_registry_reach_the_agent() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start_by_constructed_options)

        assert (seen.faulty, seen.timeout, seen.threads) == (True, 7.5, "3")


def start_by_constructed_options(me: WorkerContext) -> Seen:
    member = rpc.BackendType.TENSORPIPE
    options = rpc.backend_registry.construct_rpc_backend_options(
        member, rpc_timeout=7.5, num_worker_threads=3
    )
    assert type(options) is rpc.TensorPipeRpcBackendOptions
    return start(me, {"backend": member, "rpc_backend_options": options})


def test_transports_and_channels_are_dropped_with_one_warning() -> None:
    with Workers(1, env=FAULTY) as workers:
        options = {"_transports": ["uv"], "_channels": ["basic"], "rpc_timeout": 7.5}
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, options)

        assert (seen.faulty, seen.timeout) == (True, 7.5)
        (text,) = [text for level, text in seen.logged if level == "WARNING"]
        assert "FAULTY_TENSORPIPE runs without _transports, _channels" in text


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (
            {"device_maps": {"worker0": {"cuda:0": "cuda:1"}}},
            "device_maps={'worker0': {'cuda:0': 'cuda:1'}}",
        ),
        ({"devices": ["cuda:0"]}, "devices=['cuda:0']"),
    ],
)
def test_devices_are_refused_while_the_variable_is_set(options: dict[str, Any], asked: str) -> None:
    with Workers(1, env=FAULTY) as workers:
        (failure,) = workers.errors(start, {"backend": "TENSORPIPE"}, options)

        assert failure.kinds[0] == "ValueError"
        assert asked in failure.text
        assert "FAULTY_TENSORPIPE does not support devices or device maps" in failure.text
        assert "unset RPC_BACKENDS_OVERRIDE" in failure.text
        assert workers.run(steps.is_running) == [False]
        assert not workers[0].call(start_without).faulty


def start_without(me: WorkerContext) -> Seen:
    del os.environ["RPC_BACKENDS_OVERRIDE"]
    return start(me, {"backend": "TENSORPIPE"}, {})


def test_fault_options_are_dropped_with_a_warning() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "TENSORPIPE"}) as workers:
        seen = workers[0].call(start_with_faults)

        assert not seen.faulty
        assert (seen.timeout, seen.threads) == (7.5, "3")
        (text,) = [text for level, text in seen.logged if level == "WARNING"]
        assert "TENSORPIPE runs without messages_to_fail, num_fail_sends," in text


def start_with_faults(me: WorkerContext) -> Seen:
    options = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType.FAULTY_TENSORPIPE,
        rpc_timeout=7.5,
        num_worker_threads=3,
        messages_to_fail=["PYTHON_CALL"],
        num_fail_sends=1,
    )
    return start(me, {"backend": "FAULTY_TENSORPIPE", "rpc_backend_options": options})


def test_options_of_the_override_are_used_unchanged() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "TENSORPIPE"}) as workers:
        options = {"_transports": ["uv"], "_channels": ["basic"], "num_worker_threads": 3}
        seen = workers[0].call(start, {"backend": "FAULTY_TENSORPIPE"}, options)

        assert (seen.faulty, seen.threads) == (False, "3")
        assert [level for level, _ in seen.logged] == ["INFO"]


# --- errors --------------------------------------------------------------------------------------


def test_a_misspelt_name_is_an_error_and_starts_nothing() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "FAULTY_TENSORPIP"}) as workers:
        (failure,) = workers.errors(start, {"backend": "TENSORPIPE"})

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_OVERRIDE='FAULTY_TENSORPIP'" in failure.text
        assert "Did you mean 'FAULTY_TENSORPIPE'?" in failure.text
        assert workers.run(steps.is_running) == [False]


def test_a_denied_override_names_both_variables() -> None:
    env = {**FAULTY, "RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"}
    with Workers(1, env=env) as workers:
        (failure,) = workers.errors(start, {"backend": "TENSORPIPE"})

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_OVERRIDE='FAULTY_TENSORPIPE'" in failure.text
        assert "RPC_BACKENDS_DENY names it" in failure.text
