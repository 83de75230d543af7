"""Groups whose workers have certificates: their steps, and what holds for each engine."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed import rpc

from rpc_backends_agents.engine import canonical, certificates, identities, worker_certificates
from rpc_backends_agents.engine.identities import Identities
from support import steps
from support.certificates import files, issue
from support.workers import WorkerContext, Workers
from support.zeromq import eventually, exercise, logged_line

#: Seconds for what takes a moment.
SOON = 20.0


def make_folder(tmp_path: Path) -> Path:
    """Return a folder with an authority, and certificates for worker0 to worker3."""
    made = tmp_path / "certificates"
    worker_certificates.make(made, [f"worker{n}" for n in range(4)], 1)
    return made


# --- steps -------------------------------------------------------------------------------------------


def log_all(me: WorkerContext) -> None:
    """Write the log to the output, where the test can read it."""
    logging.basicConfig(level=logging.INFO)


def join(
    me: WorkerContext, url: str, *, backend: str, dynamic: bool = False, **options: Any
) -> None:
    """Join a group."""
    steps.join(me, url, backend=backend, world_size=None if dynamic else 0, **options)


def join_as(me: WorkerContext, url: str, name: str, **options: Any) -> str:
    """Join a dynamic group under a name that the certificate does not have; call a member."""
    certificates.Identity.check_own_name = lambda *_: None  # type: ignore[method-assign]
    join(me, url, name=name, rank=7, dynamic=True, **options)
    return call_error(me, "worker0")


def read_rules_from(me: WorkerContext, path: str) -> None:
    """Revoke what a file lists, as a policy does."""
    identities.use(lambda: Identities(revoked=frozenset(Path(path).read_text().split())))


def identity_of(me: WorkerContext, name: str) -> str | None:
    """Return the identity that the transport has seen proved."""
    identity: str | None = rpc.api._get_current_rpc_agent().transport.identity_of(name)
    return identity


def record(me: WorkerContext) -> str:
    """Return what this worker has published."""
    return canonical.dump(rpc.api._get_current_rpc_agent().transport._mine)


def call_error(me: WorkerContext, to: str) -> str:
    """Make a call; return its error, or an empty text."""
    try:
        rpc.rpc_sync(to, steps.who, timeout=SOON)
    except RuntimeError as error:
        return str(error)
    return ""


def begin_call_to_other(me: WorkerContext) -> None:
    """Make a call that takes long."""
    me.memory["call"] = rpc.rpc_async(f"worker{1 - me.index}", time.sleep, args=(60,))


def wait_for_call(me: WorkerContext) -> tuple[str, float]:
    """Wait for this call; return its error, and when it came (seconds of the host's clock)."""
    try:
        me.memory["call"].wait()
    except RuntimeError as error:
        return str(error), time.monotonic()
    return "", time.monotonic()


def leave_now(me: WorkerContext) -> None:
    steps.leave(me, graceful=False)


# --- groups ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def group(
    tmp_path: Path, folder: Path, *, backend: str, size: int = 2, members: int = 2, **more: Any
) -> Iterator[Workers]:
    """Start a group whose workers have certificates; workers beyond `members` are outside it."""
    url = f"file://{tmp_path}/store"
    options = {"backend": backend, **files(folder), **more}
    with Workers(size) as workers:
        workers.run(log_all)
        if more.get("dynamic"):
            for worker in workers[:members]:
                worker.call(join, url, **options)
        else:
            workers.run(steps.join, url, on=tuple(range(members)), world_size=members, **options)
        yield workers


def start_error(tmp_path: Path, backend: str, *options: dict[str, Any]) -> list[str]:
    """Start a group that cannot start; return the errors of its workers."""
    with Workers(len(options)) as workers:
        url = f"file://{tmp_path}/store"
        failed = workers.errors(steps.join, url, backend=backend, only=dict(enumerate(options)))
        return [each.text for each in failed]


def error_of_worker0(
    tmp_path: Path, backend: str, *options: dict[str, Any], rules: Path | None = None
) -> str:
    """Start a group that worker0 does not accept; return its error."""
    with Workers(len(options)) as workers:
        if rules is not None:
            workers[0].call(read_rules_from, str(rules))
        url = f"file://{tmp_path}/store"
        started = [
            worker.start(steps.join, url, backend=backend, **own)
            for worker, own in zip(workers, options, strict=True)
        ]
        return started[0].error().text


# --- what holds for each engine ----------------------------------------------------------------------


def check_another_authority(tmp_path: Path, folder: Path, backend: str) -> None:
    """Check that a certificate of another authority is refused."""
    another_authority = tmp_path / "other"
    worker_certificates.make(another_authority, ["worker1"], 1)

    text = error_of_worker0(
        tmp_path, backend, files(folder), files(another_authority, trusted=folder)
    )

    assert "worker 'worker1' (rank 1) is refused: the certificate of worker1" in text
    assert "is not accepted" in text


def check_expired_at_start(tmp_path: Path, folder: Path, backend: str) -> None:
    """Check that a worker refuses to start with an expired certificate."""
    issue(folder, "worker1", seconds=-1)

    texts = start_error(tmp_path, backend, files(folder), files(folder))

    assert all("worker1.pem has expired on 2" in text for text in texts)


def check_expiry_and_renewal(tmp_path: Path, folder: Path, **options: Any) -> None:
    """Check that a certificate is refused once it has expired, until it is renewed."""
    with group(tmp_path, folder, **options) as workers:
        # Only now: a start may take longer than this certificate lasts. No call has connected yet.
        issue(folder, "worker1", seconds=10)
        ends = time.monotonic() + 10
        new = "'worker1' has a new certificate of worker1"
        logged_line(workers[1], new)
        eventually(lambda: time.monotonic() > ends + 1, lambda: "the end of the certificate")

        error = workers[1].call(call_error, "worker0")
        assert "is lost" in error
        assert "expired" not in error
        logged_line(workers[0], "worker1", "certificate has expired")

        issue(folder, "worker1")
        eventually(lambda: not workers[1].call(call_error, "worker0"), lambda: "a call again")
        eventually(lambda: workers[1].output.count(new) == 2, lambda: "a second new certificate")
        workers[0].call(exercise, "worker1")
        workers.run(steps.leave)


def check_corrected_rights(tmp_path: Path, folder: Path, backend: str) -> None:
    """Check that a key whose access rights were corrected is read again."""
    with group(tmp_path, folder, backend=backend) as workers:
        issue(folder, "worker1", mode=0o640)
        logged_line(workers[1], "'worker1' keeps its certificate", "other users can access the key")
        os.chmod(folder / "worker1.key", 0o600)  # noqa: PTH101
        logged_line(workers[1], "'worker1' has a new certificate of worker1")
        workers.run(steps.leave)


def check_revocation(tmp_path: Path, folder: Path, revoked: str, **options: Any) -> None:
    """Check that a revoked worker is cut off at once, until that is taken back.

    :param revoked: the name or the number (63) of the certificate of worker1.
    """
    issue(folder, "worker1", serial=0x63)
    rules = tmp_path / "revoked"
    rules.write_text("")
    with group(tmp_path, folder, **options) as workers:
        workers[0].call(read_rules_from, str(rules))
        # Connect in both directions: a certificate that is revoked before that has another error.
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(exercise, f"worker{peer}")
        workers.run(begin_call_to_other)
        began = time.monotonic()
        temporary = tmp_path / "new"
        temporary.write_text(revoked)
        temporary.replace(rules)

        ended = [worker.call(wait_for_call) for worker in workers]

        assert "its certificate is revoked" in ended[0][0]
        assert "connection" in ended[1][0]
        assert "revoked" not in ended[1][0]
        late = max(when for _, when in ended) - began
        print(f"cut off after {late:.2f} s")
        assert late < steps.AT_ONCE
        assert "is lost" in workers[1].call(call_error, "worker0")
        logged_line(workers[0], "certificate of worker1 (certificate 63) is revoked")
        rules.write_text("")
        eventually(lambda: not workers[1].call(call_error, "worker0"), lambda: "a call again")
        workers.run(leave_now)


def check_revoked_joiner(tmp_path: Path, folder: Path, backend: str) -> None:
    """Check that a revoked worker does not join."""
    rules = tmp_path / "revoked"
    rules.write_text("worker1")

    text = error_of_worker0(tmp_path, backend, files(folder), files(folder), rules=rules)

    assert "is refused: the certificate of worker1" in text
    assert "is revoked" in text
