"""The command ``rpc-backends faults``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from rpc_backends_cli import Failure, debug_option, json_option, print_json
from rpc_backends_faults.explore.command import FOR_PROGRAMS, check_program, explore

_PATH = click.Path(path_type=Path)


# \b keeps click from joining the lines of a paragraph.
_EXAMPLES = """\b
Examples:
  rpc-backends faults check rules.toml
  rpc-backends faults run --rules rules.toml --log logs python train.py
  rpc-backends faults report logs
  rpc-backends faults run --replay logs python train.py    the same faults again
  rpc-backends faults explore --budget 10m python train.py

\b
The same with environment variables:
  RPC_BACKENDS_FAULTS=rules.toml RPC_BACKENDS_FAULTS_LOG=logs python train.py
  RPC_BACKENDS_FAULTS_REPLAY=logs python train.py
"""


@click.group("faults", epilog=_EXAMPLES)
def command() -> None:
    """Inject faults: check rules, run with them, report, and search for faults that break a program."""


@command.command("run", context_settings=FOR_PROGRAMS)
@click.option("--rules", type=_PATH, metavar="FILE", help="The rule file.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**63 - 1),
    help="The seed; overrides the seed in the rule file.",
)
@click.option(
    "--log", type=_PATH, metavar="DIR", help="The folder for event logs, one file per worker."
)
@click.option(
    "--replay",
    type=_PATH,
    metavar="LOG",
    help="Event logs of an earlier run: injects the same faults again.",
)
@click.option(
    "--left",
    type=_PATH,
    metavar="DIR",
    help="The folder for files that the program leaves for invariants (RPC_BACKENDS_FAULTS_RUN).",
)
@click.option("--free-port", is_flag=True, help="Set MASTER_PORT to a free port, as explore does.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@debug_option
def run(
    rules: Path | None,
    seed: int | None,
    log: Path | None,
    replay: Path | None,
    left: Path | None,
    free_port: bool,
    program: tuple[str, ...],
) -> None:
    """Run an unmodified program with faults.

    Write PROGRAM and its arguments after the options. The exit status is that of the program.
    """
    from rpc_backends_faults import files, settings
    from rpc_backends_processes import free_port as choose_port

    check_program(program)
    if rules is None and log is None and replay is None:
        raise Failure(
            "there is nothing to do: pass --rules FILE, --replay LOG,"
            " or --log DIR for a log without faults."
        )
    if replay is not None and (rules is not None or seed is not None):
        raise Failure(
            "--replay takes rules and seed from the log; remove --rules and --seed, or --replay."
        )
    if rules is not None:
        try:
            files.read(rules)  # one error here instead of one in each worker
        except ValueError as error:
            raise Failure(str(error)) from error
    if replay is not None and not replay.exists():
        raise Failure(f"the log {str(replay)!r} to replay does not exist; --log DIR writes one.")
    # The program may change its directory. A variable that is not set here must not come from the
    # surrounding environment either.
    given = {
        settings.RULES: rules and rules.absolute(),
        settings.SEED: seed,
        settings.LOG: log and log.absolute(),
        settings.REPLAY: replay and replay.absolute(),
    }
    environ = {name: value for name, value in os.environ.items() if name not in given}
    environ |= {name: str(value) for name, value in given.items() if value is not None}
    if free_port:
        environ["MASTER_PORT"] = str(choose_port())
    if left is not None:
        environ[settings.RUN] = str(left.absolute())
        try:
            left.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Failure(f"the folder {str(left)!r} cannot be made: {error.strerror}.") from error
    try:
        os.execvpe(program[0], list(program), environ)
    except OSError as error:
        raise Failure(f"{program[0]!r} cannot be run: {error.strerror}.") from error


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@debug_option
def check(file: Path, as_json: bool) -> None:
    """Check a rule file and explain its rules in words.

    If the file is wrong, prints every problem with its line and exits with status 1.
    """
    from rpc_backends_faults import files
    from rpc_backends_faults.rules import RuleError
    from rpc_backends_faults.words import explain

    try:
        rules = files.read(file)
    except RuleError as error:
        if as_json:
            print_json({"file": str(file), "ok": False, "problems": error.problems})
            raise click.exceptions.Exit(1) from None
        raise Failure(str(error)) from error
    if as_json:
        explained = [
            {**rule.native(), "source": rule.source, "words": explain(rule)} for rule in rules.rules
        ]
        print_json({"file": str(file), "ok": True, "seed": rules.seed, "rules": explained})
        return
    many = "1 rule" if len(rules.rules) == 1 else f"{len(rules.rules)} rules"
    click.echo(f"{file}: {many}, seed {rules.seed}")
    for rule in rules.rules:
        click.echo()
        click.echo(f"{rule.name}  ({rule.source})")
        click.echo(f"  {explain(rule)}")


@command.command("report")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("faults.html"),
    show_default=True,
    help="The HTML file to write.",
)
@json_option
@debug_option
def report(logs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Write an HTML page from event logs: a timeline per worker, every message and every fault.

    LOGS are event logs or folders of event logs. The page is one self-contained file.
    """
    from rpc_backends_faults import report_page

    try:
        story = report_page.story(logs)
    except ValueError as error:
        raise Failure(str(error)) from error
    if as_json:
        click.echo(json.dumps(story.data))
        return
    try:
        out.write_text(story.page(), encoding="utf-8")
    except OSError as error:
        raise Failure(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{out}: {story.summary()}")


command.add_command(explore)
