"""FAULTY_TENSORPIPE fails and delays what it is told to, as torch's does, and has defaults for all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import Me, Workers

FAULTY = "FAULTY_TENSORPIPE"


def construct(**options: Any) -> Any:
    return rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType[FAULTY], **options)


def attempts_until_it_passes(me: Me, to: str, value: int) -> list[str]:
    """Call until it works; return the texts of the failures before."""
    failures = []
    while True:
        try:
            assert rpc.rpc_sync(to, max, args=(value, value)) == value
        except RuntimeError as error:
            failures.append(str(error))
            assert len(failures) < 10
        else:
            return failures


def seconds_of_sending(me: Me, to: str, count: int) -> list[float]:
    """Return how long each of several asynchronous calls took to return its future."""
    seconds, futures = [], []
    for number in range(count):
        start = time.perf_counter()
        futures.append(rpc.rpc_async(to, max, args=(number, number)))
        seconds.append(time.perf_counter() - start)
    for future in futures:
        future.wait()
    return seconds


def leave_at_once(me: Me) -> None:
    rpc.shutdown(graceful=False)


def join_by_name_alone(me: Me, url: str) -> Any:
    """Start as a program does that knows nothing of options; return what init_rpc chose."""
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=url)
    rpc.init_rpc(me.name, backend=FAULTY, rank=me.index, world_size=me.size)
    return type(rpc.api._get_current_rpc_agent()).__mro__[-3].__name__


def test_it_starts_without_any_options() -> None:
    import socket

    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        with Workers(2) as workers:
            workers.run(join_by_name_alone, str(placeholder.getsockname()[1]))
            names = [worker.index for worker in workers]
            assert workers.run(steps.call_all) == [
                {f"worker{i}": f"worker{i}" for i in names} for _ in names
            ]
            workers.run(steps.leave)


def test_by_default_nothing_fails_and_nothing_is_late() -> None:
    options = construct()
    assert list(options.messages_to_fail) == []
    assert dict(options.messages_to_delay) == {}
    assert options.num_fail_sends == 0


def test_each_distinct_call_fails_as_often_as_told_and_then_passes(url: str) -> None:
    faults = {"messages_to_fail": ["PYTHON_CALL"], "num_fail_sends": 2}
    with Workers(2) as workers:
        workers.run(steps.join, url, backend=FAULTY, **faults)
        for value in (1, 2):
            failures = workers[0].call(attempts_until_it_passes, "worker1", value)
            assert len(failures) == 2
            assert all("failed intentionally" in text for text in failures)
        assert workers[0].call(attempts_until_it_passes, "worker1", 1) == []
        workers.run(leave_at_once)


def test_a_delay_is_slept_on_the_calling_thread(url: str) -> None:
    with Workers(2) as workers:
        workers.run(steps.join, url, backend=FAULTY, messages_to_delay={"PYTHON_CALL": 0.2})
        seconds = workers[0].call(seconds_of_sending, "worker1", 3)
        assert all(one >= 0.2 for one in seconds), seconds
        workers.run(steps.leave)


def test_messages_of_other_types_are_left_alone(url: str) -> None:
    faults = {"messages_to_fail": ["PYTHON_CALL"], "num_fail_sends": 5}
    with Workers(2) as workers:
        workers.run(steps.join, url, backend=FAULTY, **faults)
        assert workers[0].call(steps.differentiate, "worker1") == [3.0, 3.0]
        workers.run(leave_at_once)


@pytest.mark.parametrize("option", ["messages_to_fail", "messages_to_delay"])
def test_an_unknown_type_of_message_is_refused_with_the_nearest_and_all_known_ones(
    option: str,
) -> None:
    given: Any = ["PYTHN_CALL"] if option == "messages_to_fail" else {"PYTHN_CALL": 1.0}
    with pytest.raises(ValueError, match="PYTHN_CALL") as caught:
        construct(**{option: given})
    text = str(caught.value)
    assert option in text
    assert "Did you mean 'PYTHON_CALL'?" in text
    assert "CLEANUP_AUTOGRAD_CONTEXT_REQ" in text


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1"])
def test_a_delay_that_is_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"messages_to_delay\['PYTHON_CALL'\]"):
        construct(messages_to_delay={"PYTHON_CALL": seconds})


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="num_fail_sends is -1"):
        construct(num_fail_sends=-1)


@pytest.mark.parametrize("count", [1.5, True, "2"])
def test_a_count_that_is_no_int_is_refused(count: Any) -> None:
    with pytest.raises(TypeError, match="num_fail_sends"):
        construct(num_fail_sends=count)


def test_a_string_for_the_list_of_messages_is_refused() -> None:
    with pytest.raises(TypeError, match="give a list"):
        construct(messages_to_fail="PYTHON_CALL")


def test_an_unknown_option_is_refused_with_all_known_ones() -> None:
    with pytest.raises(TypeError, match="no option 'message_to_fail'") as caught:
        construct(message_to_fail=["PYTHON_CALL"])
    assert "messages_to_fail, messages_to_delay, num_fail_sends" in str(caught.value)


def test_a_dynamic_group_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(steps.join_dynamic, f"file://{tmp_path}/store", backend=FAULTY)
        assert "FAULTY_TENSORPIPE has no dynamic groups" in failure.text
        assert not workers[0].call(steps.is_running)


def test_the_known_types_of_message_are_those_that_torch_knows(url: str) -> None:
    from rpc_backend_faulty_tensorpipe.options import MESSAGE_TYPES

    with Workers(1) as workers:
        workers.run(
            steps.join,
            url,
            backend=FAULTY,
            messages_to_fail=list(MESSAGE_TYPES),
            messages_to_delay=dict.fromkeys(MESSAGE_TYPES, 0.0),
        )
        workers.run(leave_at_once)
