"""The command ``rpc-backends trace``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rpc_backends_cli import Failure, debug_option

if TYPE_CHECKING:
    from rpc_backends_inspect.workers import WorkerState

# \b keeps click from joining the lines of a paragraph.
_EXAMPLES = """\b
Examples:
  rpc-backends trace --out trace.json python train.py     run a program
  rpc-backends trace --out trace.json dumps/*.json        draw dumps of several hosts
"""
#: The number of calls that each worker keeps, unless RPC_BACKENDS_RECORDER sets another number.
_CALLS = "100000"


@click.command(
    "trace",
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The file to write, in Chrome's trace format, which Perfetto opens.",
)
@click.argument(
    "what", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM... | DUMP..."
)
@debug_option
@click.pass_context
def command(context: click.Context, out: Path, what: tuple[str, ...]) -> None:
    """Draw the calls of a run: workers, threads, calls, and arrows from a call to its execution.

    PROGRAM is run, and each of its workers on this host writes its last 100000 calls when it stops.
    DUMPS are files that `inspect --save` or RPC_BACKENDS_DUMP has written, for example on several hosts;
    the clocks of the hosts are aligned by the calls between them. Arguments of calls are never recorded.
    On TENSORPIPE, only the callers' sides of calls are recorded.
    """
    import json

    from rpc_backends_inspect import chrome, workers

    if all(word.endswith(".json") and Path(word).is_file() for word in what):
        status = 0
        try:
            states = _last([workers.read(Path(word)) for word in what])
        except (OSError, workers.NoStateError) as error:
            raise Failure(str(error)) from error
    else:
        status, states = _run(what)
    try:
        out.write_text(json.dumps(chrome.trace(states)))
    except OSError as error:
        raise Failure(f"the picture cannot be written: {error}") from error
    calls = sum(len(state.recent) + len(state.in_flight) for state in states)
    click.echo(
        f"{out} has {calls} calls of {len(states)} workers; open it in https://ui.perfetto.dev",
        err=True,
    )
    context.exit(status)


def _run(what: tuple[str, ...]) -> tuple[int, list[WorkerState]]:
    """Run a program; return its exit status, and the states that its workers have written."""
    import os
    import subprocess
    import tempfile

    from rpc_backends_inspect import workers

    with tempfile.TemporaryDirectory(prefix="rpc-backends-trace-") as folder:
        environ = {
            "RPC_BACKENDS_RECORDER": _CALLS,
            **os.environ,
            "RPC_BACKENDS_DUMP": folder,
            "RPC_BACKENDS_DUMP_AT_END": "on",
        }
        try:
            status = subprocess.run(what, env=environ, check=False).returncode
        except OSError as error:
            reason = "it is a file that cannot be run" if Path(what[0]).exists() else f"{error}"
            raise Failure(f"{what[0]} is neither a dump nor a program: {reason}") from error
        states = [workers.read(path) for path in sorted(Path(folder).glob("*.json"))]
    if not states:
        raise Failure(
            f"no RPC worker of {what[0]} has written a dump (its exit status is {status}). A worker "
            "writes one in shutdown, if rpc-backends-inspect is installed in its environment and "
            "RPC_BACKENDS_RECORDER is not off"
        )
    return status if status >= 0 else 128 - status, _last(states)


def _last(states: list[WorkerState]) -> list[WorkerState]:
    """Return all complete states, and the newest state of a worker that has no complete one."""
    newest: dict[tuple[str, int, str], WorkerState] = {}
    whole = [state for state in states if state.reason == "end"]
    complete = {(state.host, state.pid, state.worker) for state in whole}
    for state in sorted(states, key=lambda state: state.time_us):
        key = (state.host, state.pid, state.worker)
        if key not in complete:
            newest[key] = state
    return sorted([*whole, *newest.values()], key=lambda state: (state.worker, state.time_us))
