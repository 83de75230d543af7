"""Programs that name a backend, on another one: `RPC_BACKENDS_OVERRIDE`, seen by the agent that runs."""

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
    """What is seen of a start."""

    faulty: bool
    timeout: float
    threads: str
    said: list[tuple[str, str]]


def start(
    me: WorkerContext, arguments: dict[str, Any], options: dict[str, Any] | None = None
) -> Seen:
    """Start RPC as a program does that hard-codes its backend, call all, and stop.

    The address comes from the environment, so that a start without options finds it.

    :param options: what ``TensorPipeRpcBackendOptions`` are made of; None for no options.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if options is not None:
        arguments = {**arguments, "rpc_backend_options": rpc.TensorPipeRpcBackendOptions(**options)}
    said: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append((record.levelname, record.getMessage()))  # type: ignore[method-assign]
    for name in ("rpc_backends", "torch.distributed.rpc"):
        logging.getLogger(name).addHandler(handler)
    logging.getLogger("rpc_backends").setLevel(logging.INFO)
    rpc.init_rpc(me.name, rank=me.index, world_size=me.size, **arguments)
    seen = look(said)
    assert steps.call_all(me) == {name: name for name in steps.members(me)}
    rpc.shutdown()
    return seen


def look(said: list[tuple[str, str]]) -> Seen:
    agent = rpc.api._get_current_rpc_agent()
    kinds = [kind.__name__ for kind in type(agent).__mro__]
    threads = agent.get_debug_info()["agent.thread_pool_size"]
    return Seen("FaultyTensorPipeAgent" in kinds, rpc.get_rpc_timeout(), threads, said)


# --- whatever a program says ---------------------------------------------------------------------


def test_a_program_that_names_its_backend_gets_the_other() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start, {"backend": "TENSORPIPE"})

        assert seen.faulty
        assert seen.said == [("INFO", LINE.format("TENSORPIPE"))]


def test_a_program_that_passes_the_member_gets_the_other() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start_by_member)

        assert seen.faulty
        assert seen.said == [("INFO", LINE.format("TENSORPIPE"))]


def start_by_member(me: WorkerContext) -> Seen:
    return start(me, {"backend": rpc.BackendType.TENSORPIPE})


def test_a_program_that_passes_options_and_no_backend_gets_the_other() -> None:
    with Workers(1, env=FAULTY) as workers:
        seen = workers[0].call(start, {}, {"num_worker_threads": 3})

        assert seen.faulty
        # Nor does it hear that options alone have chosen a backend, which they have not.
        assert seen.said == [("INFO", LINE.format("the one of its TensorPipeRpcBackendOptions"))]


def test_a_program_that_says_nothing_gets_the_other() -> None:
    with Workers(1, env={**FAULTY, "RPC_BACKENDS_DEFAULT": "TENSORPIPE"}) as workers:
        seen = workers[0].call(start, {})

        assert seen.faulty
        assert seen.said == [("INFO", LINE.format("none"))]


def test_a_program_that_starts_torchs_internal_way_gets_the_other() -> None:
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
    seen = look([])
    rpc.shutdown()
    return seen


def test_the_program_may_name_a_backend_that_is_not_installed() -> None:
    with Workers(1, env=FAULTY) as workers:
        assert workers[0].call(start, {"backend": "CARRIER_PIGEON"}).faulty


def test_empty_it_changes_nothing() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": ""}) as workers:
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, {"_transports": ["uv"]})

        assert not seen.faulty
        assert seen.said == []


def test_workers_of_one_group_call_each_other_over_it(url: str) -> None:
    with Workers(2, env=FAULTY) as workers:
        options = {"init_method": url, "num_worker_threads": 4}
        seen = workers.run(start, {"backend": "TENSORPIPE"}, options)

        assert [one.faulty for one in seen] == [True, True]


# --- what becomes of the options -----------------------------------------------------------------


def test_timeout_and_threads_of_the_options_arrive_at_the_agent() -> None:
    with Workers(1, env=FAULTY) as workers:
        options = {"rpc_timeout": 7.5, "num_worker_threads": 3}
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, options)

        assert (seen.faulty, seen.timeout, seen.threads) == (True, 7.5, "3")


def test_options_that_the_registry_has_constructed_arrive_too() -> None:
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


def test_transports_and_channels_are_named_in_one_warning_and_left_out() -> None:
    with Workers(1, env=FAULTY) as workers:
        options = {"_transports": ["uv"], "_channels": ["basic"], "rpc_timeout": 7.5}
        seen = workers[0].call(start, {"backend": "TENSORPIPE"}, options)

        assert (seen.faulty, seen.timeout) == (True, 7.5)
        (text,) = [text for level, text in seen.said if level == "WARNING"]
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
def test_devices_are_refused_and_without_the_variable_the_process_can_start(
    options: dict[str, Any], asked: str
) -> None:
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


def test_faults_are_named_in_a_warning_and_left_out() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "TENSORPIPE"}) as workers:
        seen = workers[0].call(start_with_faults)

        assert not seen.faulty
        assert (seen.timeout, seen.threads) == (7.5, "3")
        (text,) = [text for level, text in seen.said if level == "WARNING"]
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


def test_options_of_the_backend_that_is_set_are_used_as_they_are() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "TENSORPIPE"}) as workers:
        options = {"_transports": ["uv"], "_channels": ["basic"], "num_worker_threads": 3}
        seen = workers[0].call(start, {"backend": "FAULTY_TENSORPIPE"}, options)

        assert (seen.faulty, seen.threads) == (False, "3")
        assert [level for level, _ in seen.said] == ["INFO"]


# --- errors --------------------------------------------------------------------------------------


def test_a_typo_is_an_error_that_says_so_and_nothing_is_started() -> None:
    with Workers(1, env={"RPC_BACKENDS_OVERRIDE": "FAULTY_TENSORPIP"}) as workers:
        (failure,) = workers.errors(start, {"backend": "TENSORPIPE"})

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_OVERRIDE='FAULTY_TENSORPIP'" in failure.text
        assert "Did you mean 'FAULTY_TENSORPIPE'?" in failure.text
        assert workers.run(steps.is_running) == [False]


def test_a_denied_backend_is_an_error_that_names_both_variables() -> None:
    env = {**FAULTY, "RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"}
    with Workers(1, env=env) as workers:
        (failure,) = workers.errors(start, {"backend": "TENSORPIPE"})

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_OVERRIDE='FAULTY_TENSORPIPE'" in failure.text
        assert "RPC_BACKENDS_DENY names it" in failure.text
