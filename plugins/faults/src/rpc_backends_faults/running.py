"""Running a program with the variables of fault injection in its environment."""

from __future__ import annotations

import os
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
) -> NoReturn:
    """Become ``program``, whose RPC agents meet these faults.

    Paths may be relative to the present folder, wherever the program goes.

    :raises ValueError: a rule file that means nothing, a log that is not there, settings that contradict
        each other, or a program that cannot be run.
    """
    if rules is None and log is None and replay is None:
        raise ValueError(
            "nothing was asked for: give --rules FILE, --replay LOG,"
            " or --log DIR for a log without faults."
        )
    if replay is not None and (rules is not None or seed is not None):
        raise ValueError(
            "--replay takes rules and seed from the log; --rules and --seed do not go with it."
        )
    if rules is not None:
        files.read(rules)  # better here, than in each worker
    if replay is not None and not replay.exists():
        raise ValueError(f"there is no log {str(replay)!r} to replay; --log DIR writes one.")
    given = {
        settings.RULES: rules and rules.absolute(),
        settings.SEED: seed,
        settings.LOG: log and log.absolute(),
        settings.REPLAY: replay and replay.absolute(),
    }
    # What is not said here is not taken from outside either.
    environ = {name: value for name, value in os.environ.items() if name not in given}
    environ |= {name: str(value) for name, value in given.items() if value is not None}
    try:
        os.execvpe(program[0], list(program), environ)
    except OSError as error:
        raise ValueError(f"{program[0]!r} cannot be run: {error.strerror}.") from error
