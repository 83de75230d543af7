"""``rpc-backends new NAME``: creates a package for a new backend."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rpc_backends_cli.output import Failure, console, debug_option

if TYPE_CHECKING:
    from rich.console import Console

    from rpc_backends_cli.scaffold import Names, Origin, Variant


@click.command(
    "new",
    epilog="""\b
Examples:
  rpc-backends new MY_BACKEND
  rpc-backends new MY_BACKEND --transport python
  rpc-backends new MY_BACKEND --transport c++ --no-dynamic-groups
  rpc-backends new MY_BACKEND --path ~/work/mine --author "Ada <ada@example.org>"
""",
)
@click.argument("name")
@click.option(
    "--transport",
    type=click.Choice(["tensorpipe", "python", "c++"]),
    default="tensorpipe",
    show_default=True,
    help="What carries the messages: torch's TensorPipe agent, or a transport over TCP that is part of "
    "the package, in Python or in C++.",
)
@click.option(
    "--dynamic-groups/--no-dynamic-groups",
    default=None,
    help="Whether workers can join and leave while the group runs (default: yes for python and c++; "
    "not available for tensorpipe).",
)
@click.option(
    "--path",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder to create (default: ./ and the package's name).",
)
@click.option(
    "--package",
    metavar="NAME",
    help="The name to import (default: rpc_backend_ and NAME in lower case).",
)
@click.option("--author", metavar="TEXT", help='"Name" or "Name <address>".')
@click.option("--url", metavar="URL", help="The page of the package's repository.")
@click.option(
    "--source",
    metavar="SOURCE",
    help="Where the package's script installs rpc-backends from, here and in CI: the URL of the "
    "repository, or a clone (default: the URL that this command was installed from; if there is none, "
    "the script asks for the variable RPC_BACKENDS_SOURCE).",
)
@debug_option
def command(
    name: str,
    transport: str,
    dynamic_groups: bool | None,
    folder: Path | None,
    package: str | None,
    author: str | None,
    url: str | None,
    source: str | None,
) -> None:
    """Create a package with a working backend called NAME.

    The package has typed options, tests that run the conformance suite, and workflows for CI and
    releases. Its tests pass before you change anything. NAME is in capital letters, for example
    MY_BACKEND. Existing files are never overwritten.
    """
    from rpc_backends_cli import scaffold
    from rpc_backends_cli.scaffold.names import package_name

    names = scaffold.Names.of(
        scaffold.member_name(name), None if package is None else package_name(package)
    )
    variant = _variant(transport, dynamic_groups)
    folder = Path(names.distribution) if folder is None else folder.expanduser()
    _check_folder(folder)
    _check_taken(names)
    _check_package(names)
    origin = scaffold.Origin(url=source) if source is not None else scaffold.installed_from()
    facts = scaffold.Facts(author=author, url=url, source=origin.url)
    texts = scaffold.files(names, variant, facts)
    try:
        scaffold.write(folder, texts)
    except OSError as error:
        raise Failure(f"{folder} cannot be written: {error}") from error
    _render(names, variant, folder, list(texts), origin, console())


def _variant(transport: str, dynamic_groups: bool | None) -> Variant:
    from rpc_backends_cli.scaffold import Kind, Variant

    kind = Kind(transport)
    try:
        return Variant(kind, kind.has_transport if dynamic_groups is None else dynamic_groups)
    except ValueError as error:
        raise Failure(str(error)) from error


def _check_folder(folder: Path) -> None:
    if folder.exists() or folder.is_symlink():
        raise Failure(
            f"{folder} already exists. Choose another folder with --path, or move this one away."
        )
    if not folder.parent.is_dir():
        raise Failure(f"{folder} cannot be created: there is no folder {folder.parent}.")


def _check_package(names: Names) -> None:
    if find_spec(names.package) is not None:
        raise Failure(
            f"the name {names.package} is taken: a package of that name can already be imported. "
            "Choose another with --package."
        )


def _check_taken(names: Names) -> None:
    """Check that no backend of this name is installed or built into torch."""
    from rpc_backends_cli.torch_state import import_torch
    from rpc_backends_core.spi.inspection import BUILTIN_CAPABILITIES, records

    failure = import_torch()
    if failure is not None:
        raise Failure(
            f"torch cannot be imported, so it is unknown which names are taken: {failure}"
        )
    holders = [
        record.origin for record in records() if record.name.casefold() == names.member.casefold()
    ]
    if names.member in BUILTIN_CAPABILITIES and not holders:
        holders.append("torch itself")
    if holders:
        who = " and ".join(dict.fromkeys(holders))
        raise Failure(
            f"the name {names.member} is taken by {who}. Choose another: if two installed packages "
            "claim the same name, neither can be used."
        )


def _render(
    names: Names, variant: Variant, folder: Path, paths: list[str], origin: Origin, to: Console
) -> None:
    from rich.text import Text

    to.print(Text.assemble(("Written: ", "bold"), f"{folder}/"), soft_wrap=True)
    for path in paths:
        to.print(Text(f"  {path}", "cyan"))
    to.print()
    to.print(Text("Next", "bold"))
    install, *others = variant.next_commands()
    if not origin.url:  # a path of this machine is not written into the package
        clone = shlex.quote(origin.clone) if origin.clone else "CLONE_OF_RPC_BACKENDS"
        install = f"RPC_BACKENDS_SOURCE={clone} {install}"
    for line in (f"cd {folder}", install, *others):
        to.print(Text(f"  {line}", "green"), soft_wrap=True)
    to.print()
    to.print(
        f"The backend is BackendType.{names.member}. To make it yours, change "
        f"{variant.place_to_change(names.package)}.",
        soft_wrap=True,
    )
