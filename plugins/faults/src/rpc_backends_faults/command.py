"""``rpc-backends faults``: looks at rule files and event logs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rpc_backends_cli import Failure, debug_option, json_option, print_json

_PATH = click.Path(path_type=Path)


@click.group("faults")
def command() -> None:
    r"""Fault injection: check rules, run programs with them, look at what they did.

    \b
    rpc-backends faults check rules.toml
    rpc-backends faults run --rules rules.toml --log logs python train.py
    rpc-backends faults report logs
    rpc-backends faults run --replay logs python train.py    the same faults again

    \b
    Or without this command:
    RPC_BACKENDS_FAULTS=rules.toml RPC_BACKENDS_FAULTS_LOG=logs python train.py
    RPC_BACKENDS_FAULTS_REPLAY=logs python train.py
    """


@command.command("run", context_settings={"ignore_unknown_options": True})
@click.option("--rules", type=_PATH, metavar="FILE", help="The rule file.")
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), help="In place of the rule file's."
)
@click.option(
    "--log", type=_PATH, metavar="DIR", help="Where to write event logs, a file a worker."
)
@click.option(
    "--replay", type=_PATH, metavar="LOG", help="An earlier run's logs: its faults, again."
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@debug_option
def run(
    rules: Path | None,
    seed: int | None,
    log: Path | None,
    replay: Path | None,
    program: tuple[str, ...],
) -> None:
    """Run a program with faults; it is not edited.

    PROGRAM and its arguments come after the options. It ends with the program's own status.
    """
    from rpc_backends_faults.running import run

    try:
        run(program, rules=rules, seed=seed, log=log, replay=replay)
    except ValueError as error:
        raise Failure(str(error)) from error


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@debug_option
def check(file: Path, as_json: bool) -> None:
    """Check a rule file, and say in words what its rules do.

    Ends with status 1 and all that is wrong, each with its line.
    """
    from rpc_backends_faults import files
    from rpc_backends_faults.errors import RuleError
    from rpc_backends_faults.words import explain

    try:
        rules = files.read(file)
    except RuleError as error:
        if as_json:
            print_json({"file": str(file), "ok": False, "problems": error.problems})
            raise click.exceptions.Exit(1) from None
        raise Failure(str(error)) from error
    if as_json:
        found = [
            {**rule.native(), "source": rule.source, "words": explain(rule)} for rule in rules.rules
        ]
        print_json({"file": str(file), "ok": True, "seed": rules.seed, "rules": found})
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
    help="The page to write.",
)
@json_option
@debug_option
def report(logs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Make a page of event logs: the workers' timelines, each message and each fault.

    LOGS are logs or folders of logs. The page needs nothing but itself; it may be sent to somebody.
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
