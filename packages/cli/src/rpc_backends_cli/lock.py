"""``rpc-backends lock``: records which packages may extend torch, and compares them with the record."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from rpc_backends_cli.output import Failure, debug_option, json_option, print_json
from rpc_backends_core.spi.inspection import lock, settings

_DEFAULT = "rpc-backends.lock"


@click.command(
    "lock",
    epilog="""\b
Examples:
  rpc-backends lock                            write rpc-backends.lock
  rpc-backends lock --check                    in CI: compare it with what is installed
  RPC_BACKENDS_LOCK=rpc-backends.lock python train.py
""",
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--check", is_flag=True, help="Write nothing; fail if the packages differ from FILE.")
@click.option(
    "--allow-editable",
    is_flag=True,
    help="Accept editable installs. Only their folders are recorded, so changes of their sources go "
    "unnoticed.",
)
@json_option
@debug_option
def command(file: Path | None, check: bool, allow_editable: bool, as_json: bool) -> None:
    """Record the installed packages with backends or hooks, with the hashes of their files.

    FILE is RPC_BACKENDS_LOCK if that is set, and otherwise rpc-backends.lock. A process with
    RPC_BACKENDS_LOCK=FILE loads none of these packages if one of them was changed, added, removed, or
    replaced by another version or by a module of the same name. The packages that they depend on are
    not recorded.
    """
    path = file or Path(os.environ.get(settings.LOCK, "").strip() or _DEFAULT)
    if check:
        _check(path, as_json)
    else:
        _write(path, allow_editable, as_json)


def _check(path: Path, as_json: bool) -> None:
    packages = lock.read(path)
    changes = lock.differences(packages)
    if as_json:
        print_json({"file": str(path), "differences": changes})
    if changes and not as_json:
        lines = "\n".join(f"- {change}" for change in changes)
        raise Failure(f"the installed packages differ from {path}:\n{lines}")
    if changes:
        raise click.exceptions.Exit(1)
    if not as_json:
        click.echo(f"{_count(packages)} and {path} agree.")


def _write(path: Path, allow_editable: bool, as_json: bool) -> None:
    if path.exists() and not path.is_file():
        raise Failure(
            f"{path} is not a regular file, so no lock is written to it. Name another file."
        )
    packages = lock.installed()
    editable = [package for package in packages if package.editable is not None]
    if editable and not allow_editable:
        names = ", ".join(f"{package.distribution} ({package.editable})" for package in editable)
        raise Failure(
            f"these are editable installs, whose files have no hashes: {names}. Install wheels, or "
            "accept with --allow-editable that changes of their sources go unnoticed."
        )
    lock.write(path, packages)
    if as_json:
        print_json({"file": str(path), "packages": [asdict(package) for package in packages]})
        return
    for package in packages:
        what = (
            f"editable, in {package.editable}"
            if package.editable
            else f"{len(package.files)} files"
        )
        click.echo(
            f"{package.distribution} {package.version}: "
            f"{', '.join([*package.backends, *package.hooks])} ({what})"
        )
    for package in editable:
        click.echo(
            f"Warning: changes of the sources of {package.distribution} in {package.editable} will not "
            "be noticed.",
            err=True,
        )
    click.echo(f"{path} has {_count(packages)}.")


def _count(packages: list[lock.Package]) -> str:
    return f"{len(packages)} package{'s' * (len(packages) != 1)}"
