"""``rpc-backends faults``: looks at rule files and event logs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rpc_backends_core.cli.output import Failure, debug_option, json_option, print_json


@click.group("faults")
def command() -> None:
    r"""Fault injection: check rules, look at what they did.

    \b
    RPC_BACKENDS_FAULTS=rules.toml python train.py         rules for a program, unchanged
    RPC_BACKENDS_FAULTS_LOG=logs ...                       and a log of every message
    RPC_BACKENDS_FAULTS_REPLAY=logs python train.py        the same faults again
    """


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
