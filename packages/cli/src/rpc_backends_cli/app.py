"""The group of subcommands: found by name and imported when used; errors shown without tracebacks."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from rpc_backends_cli import installed
from rpc_backends_cli.output import DEBUG, Failure, debug_option, unexpected
from rpc_backends_core import __version__

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record

_COMMANDS = {
    "list": "rpc_backends_cli.listing:command",
    "show": "rpc_backends_cli.show:command",
    "doctor": "rpc_backends_cli.doctor:command",
    "new": "rpc_backends_cli.new:command",
}
#: What other packages, and the repository, have of ours; in place of "no such command".
_ELSEWHERE = {
    "conformance": "it is not installed; to have it: pip install rpc-backends-testing",
    "bench": "it is not installed; to have it: pip install rpc-backends-bench",
    "demo": "it is an example of the repository; run `make demo` in a clone",
}


class Application(click.Group):
    """A group whose commands are imported by name, so that one which cannot be harms no other.

    Those of installed packages come after its own, and are looked for when help or another name is
    asked for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        return [*_COMMANDS, *self._installed]

    @functools.cached_property
    def _installed(self) -> dict[str, list[Record]]:
        return installed.commands(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, or return one that says why that cannot be done."""
        path = _COMMANDS.get(cmd_name)
        if path is None:
            return self._get_installed(cmd_name)
        module, _, attribute = path.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            why = f"it cannot be loaded: {type(error).__name__}: {error}. Reinstall the package: "
            return _unavailable(cmd_name, why + "pip install --force-reinstall rpc-backends")
        assert isinstance(command, click.Command)
        return command

    def _get_installed(self, name: str) -> click.Command | None:
        claims = self._installed.get(name)
        if claims is None:
            return _unavailable(name, _ELSEWHERE[name]) if name in _ELSEWHERE else None
        try:
            return installed.load_command(claims)
        except installed.UnusableError as error:
            return _unavailable(name, str(error))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error is one message, and a traceback only with ``--debug``."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
                raise
            except Exception as error:
                if ctx.meta.get(DEBUG):
                    raise
                raise Failure(_message(error)) from error


def _message(error: Exception) -> str:
    from rpc_backends_core.spi import RpcBackendsError

    if isinstance(error, RpcBackendsError):
        return str(error)
    return unexpected(error)


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """Show a warning (of a broken hook package, say) without the line of code that gave it."""
    click.echo(f"Warning: {message}", err=True)


def _unavailable(name: str, why: str) -> click.Command:
    def refuse(**_: object) -> None:
        raise Failure(f"`{name}` cannot be used: {why}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=refuse, help=f"({why})", context_settings=settings)


@click.command(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  rpc-backends list                      which backends are there
  rpc-backends show TENSORPIPE           its options and where it comes from
  rpc-backends doctor                    find out what is wrong
  rpc-backends doctor --json > FILE      the same, to send to somebody
  rpc-backends bench ZEROMQ --quick      measure a backend beside TENSORPIPE
  rpc-backends new MY_BACKEND            write the package of a backend of your own
  rpc-backends conformance MY_BACKEND    test a backend against the contract
""",
)
@click.version_option(__version__, package_name="rpc-backends", prog_name="rpc-backends")
@debug_option
def cli() -> None:
    """See and check the RPC backends that PyTorch finds on this machine.

    A backend is a package: after `pip install`, torch.distributed.rpc has it under its name, and a
    program uses it with init_rpc(backend="NAME") or, unchanged, with RPC_BACKENDS_DEFAULT=NAME (or
    RPC_BACKENDS_OVERRIDE=NAME, if it names another backend).
    """
