"""``rpc-backends secret``: makes a secret for the workers of a group, or certificates for them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from rpc_backends_agents.engine import secret, variables
from rpc_backends_cli import Failure, debug_option, json_option, print_json

#: The backends whose workers can share a secret.
_BACKENDS = ("ZEROMQ", "UCX")
#: The ends of the variables for the files of a certificate, and of the names of the files.
_FILES = {
    "CERTIFICATE": "{name}.pem",
    "CERTIFICATE_KEY": "{name}.key",
    "CERTIFICATE_AUTHORITY": "authority.pem",
}
#: The names that torch allows for workers.
_NAME = re.compile(r"[A-Za-z0-9_:-]{1,128}")


@click.command(
    "secret",
    epilog="""\b
Examples:
  rpc-backends secret --out ~/rpc.secret
  RPC_BACKENDS_ZEROMQ_SECRET_FILE=~/rpc.secret python train.py
\b
  export RPC_BACKENDS_ZEROMQ_SECRET=$(rpc-backends secret)
  python train.py          # and every other worker that this shell starts
\b
  rpc-backends secret --worker trainer0 --worker trainer1 --out certificates
""",
)
@click.option(
    "--out",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Write the secret to a new file that only its owner can read, and do not print it. With "
    "--worker: the folder for the certificates.",
)
@click.option(
    "--worker",
    "workers",
    metavar="NAME",
    multiple=True,
    help="Make a key and a certificate for the worker with this name, in place of a secret. May be "
    "repeated.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=365,
    show_default=True,
    help="How long the certificates are valid.",
)
@json_option
@debug_option
def command(out: Path | None, workers: tuple[str, ...], days: int, as_json: bool) -> None:
    """Make a secret for the workers of ZEROMQ or UCX.

    Give the same secret to all workers of a group. It authenticates them to each other. Anyone who has
    the secret can run code on every worker. Each group or each user may have a secret of its own: run
    this command again to make another one.

    With --worker, make a key and a certificate for each worker, so that no other worker can have its
    name. The folder also gets an authority, unless it has one: keep authority.key to yourself.
    """
    if workers:
        _make_certificates(out, list(workers), days, as_json=as_json)
        return
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


def _make_certificates(out: Path | None, names: list[str], days: int, *, as_json: bool) -> None:
    if out is None:
        raise Failure("--worker needs --out DIR, the folder for the keys and certificates.")
    for name in names:
        if not _NAME.fullmatch(name) or name == "authority":
            raise Failure(
                f"--worker {name!r} is no name for a worker: it needs 1 to 128 letters, digits, '-', '_' "
                "or ':', and must not be 'authority'."
            )
    try:
        from rpc_backends_agents.engine import worker_certificates
    except ImportError as error:
        raise Failure(
            "--worker needs the package cryptography: pip install 'rpc-backend-zeromq[certificates]'. "
            f"({error})"
        ) from error
    folder = out.expanduser().absolute()
    try:
        is_new = worker_certificates.make(folder, names, days)
    except worker_certificates.FolderError as error:
        raise Failure(f"{error}. Choose another folder.") from error
    except OSError as error:
        raise Failure(f"{folder} cannot be written: {error}") from error
    values = {
        variables.prefix(backend) + end: str(folder / file)
        for backend in _BACKENDS
        for end, file in _FILES.items()
    }
    if as_json:
        print_json({"folder": str(folder), "workers": names, "variables": values})
        return
    if is_new:
        click.echo(
            f"Written: {folder}/authority.pem and authority.key. Keep authority.key to yourself."
        )
    for name in names:
        click.echo(f"Written: {folder}/{name}.pem and {name}.key, valid for {days} days")
    click.echo(
        "Copy authority.pem to all hosts, and to each worker only its own two files. Start workers with"
    )
    for variable, value in values.items():
        click.echo(f"  {variable}='{value}'")


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
