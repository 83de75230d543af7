"""Runs a program with the environment variables of fault injection."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rpc_backends_faults import files, settings


def run(
    program: Sequence[str],
    *,
    rules: Path | None = None,
    seed: int | None = None,
    log: Path | None = None,
    replay: Path | None = None,
    left: Path | None = None,
    own_port: bool = False,
) -> NoReturn:
    """Replace this process with ``program``, with fault injection in its RPC agents.

    Relative paths refer to the current directory, even if the program changes it.

    :param left: a folder for the program's files; it is made, and is RPC_BACKENDS_FAULTS_RUN.
    :param own_port: whether MASTER_PORT is set to a free port.
    :raises ValueError: the rule file is not valid, the log does not exist, the settings contradict each
        other, or the program cannot be run.
    """
    if rules is None and log is None and replay is None:
        raise ValueError(
            "there is nothing to do: pass --rules FILE, --replay LOG,"
            " or --log DIR for a log without faults."
        )
    if replay is not None and (rules is not None or seed is not None):
        raise ValueError(
            "--replay takes rules and seed from the log; remove --rules and --seed, or --replay."
        )
    if rules is not None:
        files.read(rules)  # one error here instead of one in each worker
    if replay is not None and not replay.exists():
        raise ValueError(f"the log {str(replay)!r} to replay does not exist; --log DIR writes one.")
    given = {
        settings.RULES: rules and rules.absolute(),
        settings.SEED: seed,
        settings.LOG: log and log.absolute(),
        settings.REPLAY: replay and replay.absolute(),
    }
    # A variable that is not set here must not come from the surrounding environment either.
    environ = {name: value for name, value in os.environ.items() if name not in given}
    environ |= {name: str(value) for name, value in given.items() if value is not None}
    if own_port:
        environ["MASTER_PORT"] = str(free_port())
    if left is not None:
        try:
            left.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"the folder {str(left)!r} cannot be made: {error.strerror}."
            ) from error
        environ[settings.RUN] = str(left.absolute())
    try:
        os.execvpe(program[0], list(program), environ)
    except OSError as error:
        raise ValueError(f"{program[0]!r} cannot be run: {error.strerror}.") from error


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
