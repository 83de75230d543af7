"""Names and roles of a policy are those that certificates prove, and what it revokes is cut off."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import rpc

import rpc_backends_guard
from rpc_backends_agents.engine import worker_certificates
from rpc_backends_agents.engine.identities import current
from rpc_backends_guard import identities
from rpc_backends_guard.policy import PolicyError, read
from support import steps
from support.certificates import files, issue
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, join, logged_line

pytest.importorskip("rpc_backend_zeromq", reason="these workers use ZEROMQ")

TRAINER = "spiffe://example.org/ml/trainer"
SERVER = "spiffe://example.org/ml/server"
POLICY = f"""
version = 1
revoked = [{{revoked}}]

[roles]
trainers = ["worker0", "trainer*"]

[identities]
"{TRAINER}" = ["@trainers"]
"{SERVER}" = ["worker1"]

[[rule]]
peers = ["@trainers"]
functions = ["textwrap:dedent", "time:sleep"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a trainer's certificate for worker0, and a server's for worker1."""
    made = tmp_path / "certificates"
    worker_certificates.make(made, [], 1)
    issue(made, "worker0", uri=TRAINER, serial=0x0A1B)
    issue(made, "worker1", uri=SERVER, serial=0x0A1C)
    return made


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY.format(revoked=""))
    return path


def call_error(me: WorkerContext, to: str) -> str:
    """Call a listed function; return its error, or an empty text."""
    try:
        rpc.rpc_sync(to, textwrap.dedent, args=("text",), timeout=20)
    except RuntimeError as error:
        return str(error)
    return ""


def wait_for_long_call(me: WorkerContext, to: str) -> str:
    """Make a call that takes long; return its error."""
    future = rpc.rpc_async(to, time.sleep, args=(60,))
    me.tell("called")
    try:
        future.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def leave_now(me: WorkerContext) -> None:
    steps.leave(me, graceful=False)


def test_rules_hold_for_the_role_of_a_proved_identity(
    tmp_path: Path, folder: Path, policy: Path
) -> None:
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(join, f"file://{tmp_path}/store", **files(folder))

        assert workers[0].call(call_error, "worker1") == ""
        assert "does not list 'textwrap:dedent'" in workers[1].call(call_error, "worker0")
        workers.run(leave_now)


def test_an_identity_cannot_have_a_name_of_another_role(
    tmp_path: Path, folder: Path, policy: Path
) -> None:
    options = files(folder, "worker1")  # the server's
    with Workers(1, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        error = workers[0].start(
            steps.join,
            f"file://{tmp_path}/store",
            backend="ZEROMQ",
            name="trainer9",
            **options,
        )
        text = error.error().text

    assert "a worker cannot have the name 'trainer9'" in text
    assert f"the policy lets only {TRAINER} have the name" in text


@pytest.mark.slow
@pytest.mark.parametrize("revoked", ['"0A:1B"', f'"{TRAINER}"', '"worker0"'])
def test_a_changed_policy_revokes_workers_that_run(
    tmp_path: Path, folder: Path, policy: Path, revoked: str
) -> None:
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(join, f"file://{tmp_path}/store", **files(folder))
        pending = workers[0].start(wait_for_long_call, "worker1")
        assert pending.news() == "called"
        changed = policy.with_name("new")
        changed.write_text(POLICY.format(revoked=revoked))
        changed.replace(policy)

        assert "connection" in pending.result()
        logged_line(workers[1], "has changed: what it revokes is in force")
        assert workers[0].call(call_error, "worker1")
        policy.write_text(POLICY.format(revoked=""))
        eventually(lambda: not workers[0].call(call_error, "worker1"), lambda: "a call again")
        workers.run(leave_now)


def use_policy(me: WorkerContext, path: Path) -> None:
    """Guard the workers of this process, as a program does that reads its policy."""
    rpc_backends_guard.use(read(path))


def test_a_changed_policy_that_the_program_has_read_revokes_workers_that_run(
    tmp_path: Path, folder: Path, policy: Path
) -> None:
    with Workers(2) as workers:
        workers.run(use_policy, policy)
        workers.run(join, f"file://{tmp_path}/store", **files(folder))
        assert workers[0].call(call_error, "worker1") == ""
        policy.write_text(POLICY.format(revoked='"worker0"'))

        logged_line(workers[1], "has changed: what it revokes is in force")
        eventually(lambda: workers[0].call(call_error, "worker1"), lambda: "no error")
        workers.run(leave_now)


@pytest.fixture
def unused() -> Iterator[None]:
    """Let names be those of certificates again after the test."""
    yield
    identities.forget()


@pytest.mark.usefixtures("unused")
def test_a_policy_that_changed_after_the_program_has_read_it_is_read_again(policy: Path) -> None:
    known = read(policy)
    policy.write_text(POLICY.format(revoked='"worker0"'))
    for _ in range(2):  # and when the workers of the process start again
        identities.use(known)
        assert "worker0" in current().revoked


@pytest.mark.usefixtures("unused")
def test_a_number_may_be_written_as_openssl_shows_short_ones(policy: Path) -> None:
    policy.write_text(POLICY.format(revoked='"0x0A1B"'))
    identities.use(read(policy))
    assert "a1b" in current().revoked


def test_identities_without_certificates_end_the_start(tmp_path: Path, policy: Path) -> None:
    with Workers(1, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        (error,) = workers.errors(join, f"file://{tmp_path}/store")

    assert "has [identities] or `revoked`" in error.text
    assert "ZEROMQ has no certificates" in error.text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (f'"{SERVER}" = ["worker1"]', '"a b" = ["x"]', "is no identity"),
        ('["@trainers"]\n"', '["@boss"]\n"', "is no role of [roles]"),
        (f'"{SERVER}" = ["worker1"]', f'"{SERVER}" = "worker1"', "must be a list"),
        ("{revoked}", '"a b"', "is not written as 'trainer0' or '0a:1b'"),
        ("revoked = [{revoked}]", "revoked = 7", "must be a list of texts"),
    ],
)
def test_identities_are_read_to_the_letter(policy: Path, old: str, new: str, why: str) -> None:
    assert old in POLICY
    policy.write_text(POLICY.replace(old, new).replace("{revoked}", ""))

    with pytest.raises(PolicyError) as caught:
        read(policy)

    assert why in str(caught.value)
    assert f"{policy}:" in str(caught.value)
