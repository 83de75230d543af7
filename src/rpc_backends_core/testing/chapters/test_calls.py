"""Calls: functions run on the callee, once each, and their results or errors come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from rpc_backends_core.testing.checks import (
    WAYS,
    Call,
    asynchronous,
    deviate,
    doing,
    expect,
    fact,
    remote,
)
from rpc_backends_core.testing.marks import in_group, requirement
from rpc_backends_core.testing.processes import Me

pytestmark = requirement("calls")

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
Way = Callable[..., Call]


# --- functions that are called -------------------------------------------------------------------


def add(left: int, right: int) -> int:
    return left + right


def name_here() -> str:
    return str(rpc.get_worker_info().name)


def name_through(names: list[str]) -> list[str]:
    """Return the names of the workers that the call goes through, one after the other."""
    here = name_here()
    return [here, *rpc.rpc_sync(names[0], name_through, args=(names[1:],))] if names else [here]


# --- requirements --------------------------------------------------------------------------------


@every_way
@in_group(2)
def test_builtin(me: Me, way: Way) -> None:
    """A builtin of torch runs on the callee and its result comes back.

    Builtins travel as SCRIPT_CALL and SCRIPT_REMOTE_CALL and need no Python on the callee.
    """
    ones = torch.ones(2, 3)
    expect(way("worker1", torch.add, args=(ones, 2))).gives(ones + 2)


@every_way
@in_group(2)
def test_python_function(me: Me, way: Way) -> None:
    """A Python function runs on the callee and its result comes back.

    Python functions travel as PYTHON_CALL and PYTHON_REMOTE_CALL, pickled.
    """
    expect(way("worker1", add, args=(1, 2))).gives(3)
    expect(way("worker1", add, args=(1,), kwargs={"right": 4})).gives(5)
    expect(way("worker1", name_here)).gives("worker1")


@every_way
@in_group(2)
def test_self(me: Me, way: Way) -> None:
    """A worker can call itself."""
    expect(way("worker0", name_here)).gives("worker0")


@every_way
@in_group(2)
def test_nested_back_and_forth(me: Me, way: Way) -> None:
    """A function that was called can call its caller, which calls back, and so on.

    A worker that is executing a request must go on serving others: requests need threads of their own,
    and a thread that waits for an answer must not be one that answers need.
    """
    there_and_back = ["worker0", "worker1", "worker0"]
    expect(way("worker1", name_through, args=(there_and_back,))).gives(["worker1", *there_and_back])


_ = (asynchronous, deviate, doing, fact, remote, Any)
