"""A group forms only if all its members have the guard that one of them requires."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rpc_backends_guard
from rpc_backends_guard import Policy, Rule, hooks
from support import steps
from support.workers import WorkerContext, Workers

pytestmark = pytest.mark.slow

BACKENDS = ("ZEROMQ", "UCX")
REQUIRES = """
version = 1
require_guard = true
[[rule]]
peers = ["*"]
functions = ["guard_attacks:listed"]
"""
SAME = REQUIRES.replace("require_guard = true", "require_guard = true\nsame_policy = true")
OTHER = REQUIRES.replace("require_guard = true\n", "max_depth = 50\n")


def join(me: WorkerContext, url: str, policies: list[str], **arguments: object) -> None:
    """Join a group with the policy of this worker; with none if it is empty."""
    file = policies[me.index]
    if file:
        os.environ[hooks.POLICY] = file
    steps.join(me, url, **arguments)


def join_dynamic(me: WorkerContext, url: str, policies: list[str], backend: str) -> None:
    """Join a dynamic group with the policy of this worker."""
    if policies[me.index]:
        os.environ[hooks.POLICY] = policies[me.index]
    steps.join_dynamic(me, url, backend=backend)


def join_with_use(me: WorkerContext, url: str, size: int) -> None:
    """Join a group with a policy that the program makes; each worker's differs by `size`."""
    rules = (Rule(("*",), functions=("guard_attacks:listed",)),)
    rpc_backends_guard.use(
        Policy(rules, max_bytes=size + me.index, require_guard=True, same_policy=True)
    )
    steps.join(me, url, backend="ZEROMQ")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return policy files by what they require."""
    texts = {"requires": REQUIRES, "same": SAME, "other": OTHER}
    for name, text in texts.items():
        Path(tmp_path, f"{name}.toml").write_text(text)
    return {name: str(tmp_path / f"{name}.toml") for name in texts} | {"none": ""}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("requires", "none", "RPC worker 'worker1' (rank 1) has no guard policy, and 'worker0' (rank 0)"),
        ("none", "requires", "RPC worker 'worker0' (rank 0) has no guard policy, and 'worker1' (rank 1)"),
        ("same", "other", "RPC worker 'worker1' (rank 1) has another guard policy ("),
    ],
)  # fmt: skip
def test_a_member_without_the_required_guard_does_not_get_in(
    backend: str, first: str, second: str, problem: str, files: dict[str, str], tmp_path: Path
) -> None:
    """Both workers get an error that names the one that lacks it."""
    url = f"file://{tmp_path}/store"
    with Workers(2) as workers:
        failures = workers.errors(join, url, [files[first], files[second]], backend=backend)
        assert len(failures) == 2
        for failure in failures:
            assert failure.kinds[0] == "GroupError"
            assert problem in failure.text
            key = "same_policy" if first == "same" else "require_guard"
            assert f"remove {key} from the policy" in failure.text


@pytest.mark.parametrize(
    ("first", "second"), [("requires", "other"), ("same", "same"), ("other", "none")]
)
def test_members_that_meet_the_requirements_get_in(
    first: str, second: str, files: dict[str, str], tmp_path: Path
) -> None:
    with Workers(2) as workers:
        url = f"file://{tmp_path}/store"
        workers.run(join, url, [files[first], files[second]], backend="ZEROMQ")
        workers.run(steps.leave)


def test_policies_made_in_python_are_compared_too(tmp_path: Path) -> None:
    with Workers(2) as workers:
        failures = workers.errors(join_with_use, f"file://{tmp_path}/store", 1000)
        assert all("has another guard policy" in failure.text for failure in failures)


@pytest.mark.parametrize(("first", "second"), [("requires", "none"), ("none", "requires")])
def test_a_worker_that_joins_a_dynamic_group_is_compared_with_its_first_member(
    first: str, second: str, files: dict[str, str], tmp_path: Path
) -> None:
    url, policies = f"file://{tmp_path}/store", [files[first], files[second]]
    with Workers(2) as workers:
        workers[0].call(join_dynamic, url, policies, "ZEROMQ")
        with pytest.raises(Exception, match="has no guard policy, and 'worker"):
            workers[1].call(join_dynamic, url, policies, "ZEROMQ")


def test_a_start_without_a_group_cannot_require_a_guard(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is passed over in silence: an agent that no `init_rpc` has made is refused."""
    monkeypatch.setenv(hooks.POLICY, files["requires"])
    running = hooks.rpc_backends_agent(backend=None)
    next(running)
    with pytest.raises(hooks.RefusedError, match="has require_guard, which this start cannot"):
        running.send("agent")
