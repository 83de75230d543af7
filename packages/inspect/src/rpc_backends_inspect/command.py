"""The command ``rpc-backends inspect``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rpc_backends_cli import Failure, debug_option, json_option, print_json

if TYPE_CHECKING:
    from rpc_backends_inspect.workers import WorkerState

# \b keeps click from joining the lines of a paragraph.
_EXAMPLES = """\b
Examples:
  rpc-backends inspect                     the workers of this host
  rpc-backends inspect --group 3f9a        the workers of one group
  rpc-backends inspect --worker ps         one worker
  rpc-backends inspect --watch             calls per second and their times, live
  rpc-backends inspect --save dumps        write their states to files
  rpc-backends inspect dumps/*.json        states of several hosts together
"""


@click.command("inspect", epilog=_EXAMPLES)
@click.option("--worker", metavar="NAME", help="Only workers with this name.")
@click.option(
    "--pid", "pids", type=int, multiple=True, help="Only workers of this process; can be repeated."
)
@click.option(
    "--group",
    metavar="ID",
    help="Only workers of the group with this address, or with an id that begins so.",
)
@click.option("--stacks", is_flag=True, help="Show the Python stacks of all threads.")
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each worker's state to a file in this folder.",
)
@click.option("--watch", is_flag=True, help="Show rates and times of calls until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 5.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)
@click.argument("dumps", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
@debug_option
def command(
    worker: str | None,
    pids: tuple[int, ...],
    group: str | None,
    stacks: bool,
    save: Path | None,
    watch: bool,
    interval: float,
    dumps: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show what RPC workers are waiting for, and why they hang.

    Asks your workers on this host, even if they hang or hold the GIL, and shows them by group: a program
    has one, or one after another. DUMPS are files that --save
    has written, for example on several hosts. If DUMPS are given, no worker is asked. Arguments of
    calls are never recorded.
    """
    if watch:
        if dumps or save or stacks:
            raise click.UsageError("--watch cannot be used with dumps, --save or --stacks.")
        _watch(worker, pids, group, interval, as_json=as_json)
        return
    from rpc_backends_inspect import causes
    from rpc_backends_inspect.groups import grouped

    states = _states(worker, pids, group, dumps)
    if save is not None:
        _save(states, save)
    explained = [
        (group_of_states, causes.explain(group_of_states)) for group_of_states in grouped(states)
    ]
    if as_json:
        print_json(
            {
                "groups": [
                    {
                        "id": group_of_states.key,
                        "address": group_of_states.address,
                        "backend": group_of_states.backend,
                        "members": group_of_states.members,
                        "processes": [state.pid for state in group_of_states.states],
                    }
                    for group_of_states, _ in explained
                ],
                "workers": [
                    {
                        "worker": state.worker,
                        "pid": state.pid,
                        "group_id": state.group_key,
                        "problem": state.problem,
                    }
                    | state.document
                    | ({} if state.problem else {"threads": _threads(state)})
                    for state in states
                ],
                "causes": [
                    {
                        "kind": cause.kind,
                        "text": cause.text,
                        "workers": cause.workers,
                        "group_id": group_of_states.key,
                    }
                    for group_of_states, causes_of_group in explained
                    for cause in causes_of_group
                ],
            }
        )
        return
    from rpc_backends_inspect.view import show

    show(explained, stacks=stacks)


def _threads(state: WorkerState) -> list[dict[str, Any]]:
    return [
        {
            "thread": thread.number,
            "holds_gil": thread.number == state.gil_holder,
            "frames": [asdict(frame) for frame in thread.frames],
        }
        for thread in state.threads
    ]


def _watch(
    worker: str | None,
    pids: tuple[int, ...],
    group: str | None,
    interval: float,
    *,
    as_json: bool,
) -> None:
    """Watch until Ctrl-C; with JSON, print a line after each interval."""
    import json
    import sys

    from rpc_backends_inspect import groups, watching, workers

    if not as_json and not sys.stdout.isatty():
        raise Failure(
            "--watch needs a terminal, and stdout is not one; with --json it prints a line per interval"
        )

    def read() -> list[WorkerState]:
        return groups.chosen(workers.running(pids=pids, last=True), worker=worker, group=group)

    if not read():
        _states(worker, pids, group, ())  # says what is missing
    if not as_json:
        watching.watch(read, interval)
        return
    try:
        for line in watching.lines(read, interval):
            print(json.dumps(line), flush=True)
    except (KeyboardInterrupt, BrokenPipeError):
        return


def _states(
    worker: str | None, pids: tuple[int, ...], group: str | None, dumps: tuple[Path, ...]
) -> list[WorkerState]:
    from rpc_backends_inspect import groups, workers

    if dumps:
        try:
            states = [workers.read(path) for path in dumps]
        except (OSError, workers.NoStateError) as error:
            raise Failure(str(error)) from error
        chosen = groups.chosen(states, worker=worker, pids=pids, group=group)
        if not chosen:
            raise Failure(f"none of the {len(states)} dumps is of such a worker")
        return chosen
    states = groups.chosen(workers.running(pids=pids), worker=worker, group=group)
    if not states:
        named = f"named {worker!r} " if worker is not None else ""
        asked = named + (f"in process {', '.join(map(str, pids))} " if pids else "")
        asked += f"in group {group!r} " if group is not None else ""
        raise Failure(
            f"no RPC worker {asked}of this user runs on this host. A worker can "
            "be inspected from init_rpc to shutdown, if rpc-backends-inspect is installed in its "
            "environment and RPC_BACKENDS_RECORDER is not off."
        )
    return states


def _save(states: list[WorkerState], folder: Path) -> None:
    import json
    import os
    import socket
    from urllib.parse import quote

    folder.mkdir(parents=True, exist_ok=True)
    for state in states:
        if not state.document:
            click.echo(
                f"{state.worker} (process {state.pid}) {state.problem}: nothing to save", err=True
            )
            continue
        path = folder / f"{socket.gethostname()}-{state.pid}-{quote(state.worker, safe='')}.json"
        # Other users must not read the names of functions and workers.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:  # noqa: PTH123, a descriptor
            json.dump(state.document, file)
        click.echo(str(path), err=True)
