"""The command ``rpc-backends guard``."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from rpc_backends_cli import Failure, debug_option, json_option, print_json

_PR_SET_PDEATHSIG = 1
_PATH = click.Path(path_type=Path, dir_okay=False)

# \b keeps click from joining the lines of a paragraph.
_EXAMPLES = """\b
Examples:
  rpc-backends guard learn --out policy.toml -- python train.py
  rpc-backends guard check policy.toml
  RPC_BACKENDS_GUARD=policy.toml python train.py
  rpc-backends guard diff policy.toml -- python train.py    what a new version needs beyond it
"""


@click.group("guard", epilog=_EXAMPLES)
def command() -> None:
    """Permit only listed calls: learn, check and compare policies."""


@command.command("check")
@click.argument("file", type=_PATH)
@click.option("--strict", is_flag=True, help="Exit with status 1 if there is a warning.")
@json_option
@debug_option
def check(file: Path, strict: bool, as_json: bool) -> None:
    """Check a policy, explain it in words, and warn of entries that give everything away.

    If the file is wrong, prints every problem with its line and exits with status 1.
    """
    from rpc_backends_guard import words
    from rpc_backends_guard.policy import PolicyError, read

    try:
        policy = read(file)
    except PolicyError as error:
        if as_json:
            print_json({"file": str(file), "ok": False, "problems": str(error).splitlines()})
            raise click.exceptions.Exit(1) from None
        raise Failure(str(error)) from error
    explained, warnings = words.explain(policy), words.warnings(policy)
    if as_json:
        print_json(
            {
                "file": str(file),
                "ok": True,
                "sha256": policy.digest,
                "words": explained,
                "warnings": warnings,
            }
        )
        raise click.exceptions.Exit(int(strict and bool(warnings)))
    click.echo(f"{file}: {policy.size}, sha256 {policy.digest}")
    for line in explained:
        click.echo(line)
    for line in warnings:
        click.echo(f"warning: {line}", err=True)
    raise click.exceptions.Exit(int(strict and bool(warnings)))


@command.command("learn", context_settings={"ignore_unknown_options": True})
@click.option("--out", type=_PATH, required=True, help="The policy file to write.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@debug_option
def learn(out: Path, program: tuple[str, ...]) -> None:
    """Run a program, and write the smallest policy that permits what its workers call.

    Write PROGRAM and its arguments after the options. Nothing is refused during the run.
    """
    from rpc_backends_guard import learning

    if out.exists():
        raise Failure(f"{out} exists. Choose another file, or remove it.")
    policy = _learned(program)
    text = learning.toml(policy, f"Learned from: {' '.join(program)}")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{out} cannot be written: {error.strerror}.") from error
    click.echo(f"{out}: {policy.size}. `rpc-backends guard check {out}` explains them.")


@command.command("diff", context_settings={"ignore_unknown_options": True})
@click.argument("file", type=_PATH)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@debug_option
def diff(file: Path, program: tuple[str, ...]) -> None:
    """Run a program, and show what its workers call that a policy does not permit.

    Nothing is refused during the run. Exits with status 1 if the policy lacks entries.
    """
    from rpc_backends_guard import learning
    from rpc_backends_guard.policy import PolicyError, read

    try:
        policy = read(file)
    except PolicyError as error:
        raise Failure(str(error)) from error
    lines = learning.missing(_learned(program), policy)
    for line in lines:
        click.echo(f"+ {line}")
    if lines:
        raise click.exceptions.Exit(1)
    click.echo(f"{file} permits all that the program calls.")


def _learned(program: tuple[str, ...]):  # type: ignore[no-untyped-def]  # Policy, not imported here
    from rpc_backends_guard import hooks, learning
    from rpc_backends_guard.policy import PolicyError

    with tempfile.TemporaryDirectory() as folder:
        environ = {name: value for name, value in os.environ.items() if name != hooks.POLICY}
        environ[hooks.LEARN] = folder
        try:
            status = _run(program, environ)
        except OSError as error:
            raise Failure(f"{program[0]!r} cannot be run: {error.strerror}.") from error
        if status != 0:
            print(f"warning: the program has ended with status {status}", file=sys.stderr)
        try:
            return learning.merge(
                Path(folder), lambda text: print(f"warning: {text}", file=sys.stderr)
            )
        except PolicyError as error:
            raise Failure(str(error)) from error


def _run(program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Run a program; return its exit status.

    Its workers obey no policy, so it gets SIGTERM when this command ends, also if that is killed.
    """
    libc = ctypes.CDLL(None)
    with subprocess.Popen(
        program,
        env=environ,
        # This command has no other thread.
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            raise
