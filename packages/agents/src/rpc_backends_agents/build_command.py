"""``rpc-backends build-agents``: compiles the agents for a torch that the package has no build for."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from rpc_backends_agents import build_cache, compiling, torch_builds
from rpc_backends_agents.installed_torch import Torch
from rpc_backends_agents.torch_builds import Build
from rpc_backends_cli import Failure, debug_option, json_option, print_json, stdout_for_json


@click.command(
    "build-agents",
    epilog="""\b
Examples:
  rpc-backends build-agents
  CXX=clang++ rpc-backends build-agents --force
""",
)
@click.option("--force", is_flag=True, help="Compile even if there is a build for this torch.")
@json_option
@debug_option
def command(force: bool, as_json: bool) -> None:
    """Compile the agents for the installed torch.

    The package rpc-backends-agents has compiled files for each torch that was released before it. A
    newer torch, a nightly one, or one that you or a vendor compiled needs this command once, and again
    after each change of torch. It needs a C++ compiler, CMake, and two minutes. The result goes to your
    cache ($XDG_CACHE_HOME or ~/.cache), and is used from then on.
    """
    started = time.monotonic()
    with stdout_for_json(as_json):
        torch = Torch.installed()
        build = None if force else _existing(torch)
        compiled = build is None
        if build is None:
            build = _compile(torch)
    if as_json:
        seconds = round(time.monotonic() - started, 1)
        print_json({**build.data(), "compiled": compiled, "seconds": seconds})
    elif compiled:
        click.echo(f"Compiled for {torch}: {build.path}")
    else:
        click.echo(f"There is a build for {torch}: {build.path}")
        click.echo("--force compiles another one.")


def _existing(torch: Torch) -> Build | None:
    try:
        return torch_builds.fitting(torch)
    except ImportError as error:  # others could have written it
        raise Failure(str(error)) from error


def _compile(torch: Torch) -> Build:
    try:
        tools = compiling.Tools.of_this_machine()
    except compiling.CompilationError as error:
        raise Failure(str(error)) from error
    try:
        with _ended_in_order(torch):
            folder = build_cache.make_folder(torch)
            path = compiling.compile_build(torch, folder, tools, _report)
    except OSError as error:
        raise Failure(
            f"the compiled file cannot be kept: {error}. Set XDG_CACHE_HOME to a folder of your own"
        ) from error
    except compiling.CompilationError as error:
        raise Failure(str(error)) from error
    return Build(path, torch.version, torch.new_strings, "cache")


def _report(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _ended_in_order(torch: Torch) -> Iterator[None]:
    """Turn SIGTERM into an exception, which deletes temporary files; leave no empty folder."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        build_cache.remove_empty_folders(torch)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
