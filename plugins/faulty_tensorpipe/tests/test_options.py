"""The options of FAULTY_TENSORPIPE: their defaults, and errors that name the valid values."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers

MESSAGE_TYPES = (
    "RREF_FORK_REQUEST",
    "RREF_CHILD_ACCEPT",
    "RREF_USER_DELETE",
    "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    "PYTHON_CALL",
    "SCRIPT_CALL",
    "PYTHON_REMOTE_CALL",
    "SCRIPT_REMOTE_CALL",
    "PYTHON_RREF_FETCH_CALL",
    "SCRIPT_RREF_FETCH_CALL",
)


def construct(me: WorkerContext, **options: Any) -> dict[str, Any]:
    made = rpc.backend_registry.construct_rpc_backend_options(
        rpc.BackendType.FAULTY_TENSORPIPE, **options
    )
    return {
        "type": type(made).__name__,
        "num_worker_threads": made.num_worker_threads,
        "rpc_timeout": made.rpc_timeout,
        "messages_to_fail": list(made.messages_to_fail),
        "messages_to_delay": dict(made.messages_to_delay),
        "num_fail_sends": made.num_fail_sends,
    }


def test_every_option_has_a_default_without_faults() -> None:
    with Workers(1) as workers:
        assert workers[0].call(construct) == {
            "type": "FaultyTensorPipeRpcBackendOptions",
            "num_worker_threads": 16,
            "rpc_timeout": 60.0,
            "messages_to_fail": [],
            "messages_to_delay": {},
            "num_fail_sends": 0,
        }


def test_options_arrive_as_given() -> None:
    given = {
        "num_worker_threads": 3,
        "rpc_timeout": 5.0,
        "messages_to_fail": ["PYTHON_CALL"],
        "messages_to_delay": {"SCRIPT_CALL": 1.5},
        "num_fail_sends": 2,
    }
    with Workers(1) as workers:
        seen = workers[0].call(construct, **given)

        assert seen == {"type": "FaultyTensorPipeRpcBackendOptions", **given}


def test_every_known_message_type_can_be_failed_and_delayed(url: str) -> None:
    with Workers(1) as workers:
        workers[0].call(
            steps.join,
            url,
            backend="FAULTY_TENSORPIPE",
            messages_to_fail=list(MESSAGE_TYPES),
            messages_to_delay=dict.fromkeys(MESSAGE_TYPES, 0.0),
        )
        workers[0].call(steps.leave)


@pytest.mark.parametrize(
    "options",
    [{"messages_to_fail": ["PYTHON_CAL"]}, {"messages_to_delay": {"PYTHON_CAL": 1.0}}],
    ids=["fail", "delay"],
)
def test_an_unknown_message_type_is_an_error_with_suggestions(
    options: dict[str, Any],
) -> None:
    """Torch's error is only "No mapping to rpc::MessageType exists"."""
    with Workers(1) as workers:
        (failure,) = workers.errors(construct, **options)

        assert failure.kinds[0] == "ValueError"
        assert next(iter(options)) in failure.text
        assert "'PYTHON_CAL'" in failure.text
        assert "Did you mean 'PYTHON_CALL'?" in failure.text
        assert all(name in failure.text for name in MESSAGE_TYPES)


@pytest.mark.parametrize("seconds", [-0.1, float("nan"), float("inf"), "soon"])
def test_a_delay_that_is_not_seconds_is_an_error(seconds: Any) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(construct, messages_to_delay={"PYTHON_CALL": seconds})

        assert failure.kinds[0] == "ValueError"
        assert f"messages_to_delay['PYTHON_CALL'] is {seconds!r}" in failure.text


@pytest.mark.parametrize(
    ("count", "kind"), [(-1, "ValueError"), (1.5, "TypeError"), ("2", "TypeError")]
)
def test_a_count_that_is_negative_or_not_an_int_is_an_error(count: Any, kind: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(construct, num_fail_sends=count)

        assert failure.kinds[0] == kind
        assert f"num_fail_sends is {count!r}" in failure.text


def test_a_string_instead_of_a_list_is_an_error() -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(construct, messages_to_fail="PYTHON_CALL")

        assert failure.kinds[0] == "TypeError"
        assert "needs a list of message types" in failure.text


def test_an_unknown_option_is_an_error_that_lists_the_known_ones() -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(construct, messages_to_fial=["PYTHON_CALL"])

        assert failure.kinds[0] == "TypeError"
        assert "'messages_to_fial'" in failure.text
        assert "messages_to_fail, messages_to_delay, num_fail_sends" in failure.text


def test_a_dynamic_group_is_an_error_that_says_why(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join_dynamic, url, backend="FAULTY_TENSORPIPE")

        assert failure.kinds[0] == "ValueError"
        assert "no dynamic groups" in failure.text
        assert "Pass world_size" in failure.text
        assert workers.run(steps.is_running) == [False]
