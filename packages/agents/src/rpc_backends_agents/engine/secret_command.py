"""``rpc-backends secret``: makes a secret for the workers of a group to share."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rpc_backends_agents.engine import secret
from rpc_backends_cli import Failure, debug_option, json_option, print_json

#: The backends whose workers can share a secret.
_BACKENDS = ("ZEROMQ", "UCX")


@click.command(
    "secret",
    epilog="""\b
Examples:
  rpc-backends secret --out ~/rpc.secret
  RPC_BACKENDS_ZEROMQ_SECRET_FILE=~/rpc.secret python train.py
\b
  export RPC_BACKENDS_ZEROMQ_SECRET=$(rpc-backends secret)
  python train.py          # and every other worker that this shell starts
""",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the secret to a new file that only its owner can read, and do not print it.",
)
@json_option
@debug_option
def command(out: Path | None, as_json: bool) -> None:
    """Make a secret for the workers of ZEROMQ or UCX.

    Give the same secret to all workers of a group. It authenticates them to each other. Anyone who has
    the secret can run code on every worker. Each group or each user may have a secret of its own: run
    this command again to make another one.
    """
    text = secret.generate()
    fingerprint = secret.parse(text, "the new secret").fingerprint
    if out is None:
        if as_json:
            names = {backend: secret.variable(backend) for backend in _BACKENDS}
            print_json({"secret": text, "fingerprint": fingerprint, "variables": names})
        else:
            click.echo(text)
        return
    path = out.expanduser().absolute()
    _write(path, text)
    if as_json:
        names = {backend: secret.file_variable(backend) for backend in _BACKENDS}
        print_json({"file": str(path), "fingerprint": fingerprint, "variables": names})
        return
    click.echo(f"Written: {path} (fingerprint {fingerprint})")
    click.echo(
        "Copy the file to every host, readable by its owner only, and start each worker with"
    )
    for backend in _BACKENDS:
        click.echo(f"  {secret.file_variable(backend)}={path}  (backend {backend})")


def _write(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        raise Failure(
            f"{path} already exists, and workers may be using it. Choose another name or remove the file."
        ) from None
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            private = not os.fstat(descriptor).st_mode & secret.OTHERS_MAY
            if private:
                file.write(f"{text}\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise Failure(f"{path} cannot be written: {error}") from error
    if not private:
        path.unlink(missing_ok=True)
        raise Failure(
            f"{path} would be accessible to other users: its file system does not support "
            "permissions. Choose another folder."
        )
