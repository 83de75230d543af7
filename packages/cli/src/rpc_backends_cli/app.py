"""The command group: imports subcommands on demand and shows errors without tracebacks."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from rpc_backends_cli import installed
from rpc_backends_cli.output import DEBUG, JSON, Failure, debug_option, print_json, unexpected
from rpc_backends_core import __version__

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record

_COMMANDS = {
    "list": "rpc_backends_cli.listing:command",
    "show": "rpc_backends_cli.show:command",
    "doctor": "rpc_backends_cli.doctor:command",
    "new": "rpc_backends_cli.new:command",
    "lock": "rpc_backends_cli.lock:command",
}
#: The packages of this project that bring the other commands.
_PACKAGES = {
    "bench": "rpc-backends-bench",
    "build-agents": "rpc-backends-agents",
    "conformance": "rpc-backends-testing",
    "faults": "rpc-backends-faults",
    "guard": "rpc-backends-guard",
    "inspect": "rpc-backends-inspect",
    "secret": "rpc-backends-agents",
    "trace": "rpc-backends-inspect",
}
#: Reasons why a command is not there, in place of "no such command".
_ELSEWHERE = {
    **{
        name: f"its package is not installed; install it with: pip install {package}"
        for name, package in _PACKAGES.items()
    },
    "demo": "it is an example in the repository; run `make demo` in a clone",
}


#: Seconds that the import of a package may take for its line in the help.
_HELP_SECONDS = 5.0


class Application(click.Group):
    """A group that imports commands by name, so that a broken one does not affect the others.

    Commands of installed packages come last. They are only searched for to show the help or to find a
    name that is not built in.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order in which a newcomer needs them."""
        return [*_COMMANDS, *self._installed]

    @functools.cached_property
    def _installed(self) -> dict[str, list[Record]]:
        return installed.commands(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; if that fails, return a command that reports why."""
        path = _COMMANDS.get(cmd_name)
        if path is None:
            return self._get_installed(cmd_name)
        module, _, attribute = path.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            why = f"it cannot be loaded: {type(error).__name__}: {error}. Reinstall the package: "
            return _unavailable(cmd_name, why + "pip install --force-reinstall rpc-backends-cli")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Import the command that was asked for, however long that takes."""
        self._asked = args[0]
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from rpc_backends_core.spi import nearest

            names = self.list_commands(ctx)
            close = nearest(args[0], [*names, *_PACKAGES])
            hint = f"Did you mean {close!r}?" if close else f"The commands are {', '.join(names)}."
            ctx.fail(f"no such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    #: The command that was asked for; all others are imported for a line of help only.
    _asked: str | None = None

    def _get_installed(self, name: str) -> click.Command | None:
        claims = self._installed.get(name)
        if claims is None:
            return _unavailable(name, _ELSEWHERE[name]) if name in _ELSEWHERE else None
        try:
            if name == self._asked:
                return installed.load_command(claims)
            return installed.load_command_within(claims, _HELP_SECONDS)
        except installed.UnusableError as error:
            return _unavailable(name, str(error))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; show an error as one message, with a traceback only for ``--debug``."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (Failure, click.UsageError) as error:
                _print_as_json(ctx, error)
                raise
            except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
                raise
            except Exception as error:
                if ctx.meta.get(DEBUG):
                    raise
                failure = Failure(_message(error))
                _print_as_json(ctx, failure)
                raise failure from error


def _print_as_json(context: click.Context, failure: click.ClickException) -> None:
    """Print an error to stdout if the command was asked for JSON, and has not printed it."""
    if context.meta.get(JSON):
        print_json({"error": failure.format_message()})


def _message(error: Exception) -> str:
    from rpc_backends_core.spi import RpcBackendsError

    if isinstance(error, RpcBackendsError):
        return str(error)
    return unexpected(error)


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """Show a warning (for example about a broken hook package) without its source line."""
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
  rpc-backends list                      list the available backends
  rpc-backends show TENSORPIPE           show its options and its package
  rpc-backends doctor                    look for problems and test every backend
  rpc-backends doctor --json > FILE      write the findings to a file
  rpc-backends bench ZEROMQ --quick      measure a backend against TENSORPIPE
  rpc-backends new MY_BACKEND            create a package for a new backend
  rpc-backends lock                      record which packages may extend torch
  rpc-backends conformance MY_BACKEND    test a backend against the contract
""",
)
@click.version_option(__version__, package_name="rpc-backends-cli", prog_name="rpc-backends")
@debug_option
def cli() -> None:
    """Inspect, test and measure the RPC backends of PyTorch on this machine.

    A backend is a Python package. After `pip install`, a program selects it with
    init_rpc(backend="NAME"). To switch a program without editing it, set RPC_BACKENDS_DEFAULT=NAME if
    the program names no backend, or RPC_BACKENDS_OVERRIDE=NAME if it names another one.
    """
