"""``rpc-backends doctor``: looks for problems and tests every backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from rpc_backends_cli.output import (
    DEBUG,
    console,
    debug_option,
    json_option,
    print_json,
    stdout_for_json,
    timeout_option,
    unexpected,
)

if TYPE_CHECKING:
    from rpc_backends_cli.report import Finding, Section
    from rpc_backends_core import Record

Status = Callable[[str], None]


def gather(names: tuple[str, ...], limit: float, calls: bool, status: Status) -> Iterator[Section]:
    """Run the checks in turn. A problem becomes a finding and does not stop the other checks.

    :param names: the backends to test; all if empty.
    :param limit: time limit in seconds for loading a package, and for the calls over a backend.
    :param status: called with a description of each step.
    """
    from rpc_backends_cli import addresses, checks, installed_checks, name_server, packages

    status("importing torch")
    yield from _guarded("versions", lambda: [checks.versions()])
    status("comparing requirements with what is installed")
    yield from _guarded("requirements", lambda: [packages.check()])
    if "torch" not in sys.modules:
        return
    yield from _guarded("bridge", lambda: [checks.torch_bridge()])
    yield from _guarded("variables", lambda: [checks.variables()])
    if checks.has_tensorpipe():
        status("checking network interfaces")
        yield from _guarded("addresses", lambda: [addresses.check(addresses.machine())])
    status("timing name lookups")
    yield from _guarded("names", lambda: [name_server.check(addresses.own())])
    yield from _guarded("packages", lambda: installed_checks.check(_KEYS, limit, status))
    yield from _guarded("backends", lambda: _backends(names, limit, calls, status))


#: The keys of doctor's own sections.
_KEYS = (
    "versions",
    "requirements",
    "bridge",
    "variables",
    "addresses",
    "names",
    "packages",
    "unknown",
    "backends",
    "hooks",
    "calls",
)


def _guarded(key: str, look: Callable[[], Iterable[Section]]) -> Iterator[Section]:
    """Yield the sections of ``look``; an exception becomes a finding."""
    from rpc_backends_cli.report import Finding, Section
    from rpc_backends_core.spi import RpcBackendsError

    try:
        yield from look()
    except Exception as error:
        if click.get_current_context().meta.get(DEBUG):
            raise
        text = str(error) if isinstance(error, RpcBackendsError) else unexpected(error)
        yield Section(key, key.capitalize(), [Finding("problem", "not checked", text)])


def _backends(
    names: tuple[str, ...], limit: float, calls: bool, status: Status
) -> Iterator[Section]:
    from rpc_backends_cli import loading, probe
    from rpc_backends_cli.report import Section
    from rpc_backends_core.spi.inspection import default_registry, records

    known = sorted(records(), key=lambda record: record.name)
    hooks = default_registry().hook_packages()
    unknown = _unknown(names, known)
    if unknown:
        yield Section("unknown", "Unknown backend names", unknown)
    if names:
        folds = {name.casefold() for name in names}
        known = [record for record in known if record.name.casefold() in folds]
    status(f"loading {len(known)} backends")
    sections = loading.check(known, hooks, limit)
    yield from sections
    if not calls:
        return
    usable = [finding.about for finding in sections[0].findings if finding.data["state"] in _USABLE]
    findings = []
    for number, name in enumerate(usable, 1):
        status(f"making calls over {name} ({number} of {len(usable)})")
        findings.append(probe.check(name, limit))
    yield Section("calls", f"Calls between two processes (median of {probe.CALLS})", findings)


_USABLE = ("loaded", "registered")


def _unknown(names: tuple[str, ...], known: list[Record]) -> list[Finding]:
    from rpc_backends_cli.report import Finding
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import default_registry

    folds = {record.name.casefold() for record in known}
    findings = []
    for name in names:
        if name.casefold() not in folds:
            try:
                default_registry().find(name)
            except RpcBackendsError as error:
                findings.append(Finding("problem", name, str(error)))
    return findings


@click.command(
    "doctor",
    epilog="""\b
Examples:
  rpc-backends doctor
  rpc-backends doctor TENSORPIPE --timeout 20
  rpc-backends doctor --no-calls --json
""",
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@timeout_option("Time limit for loading a package, and for the calls over a backend.")
@click.option(
    "--calls/--no-calls", default=True, help="Whether to make real calls.  [default: calls]"
)
@json_option
@debug_option
def command(names: tuple[str, ...], timeout: float, calls: bool, as_json: bool) -> None:
    """Look for problems and test every backend.

    Checks versions, the bridge to torch, environment variables, the address that workers would use
    and how long its name takes to look up, and the requirements of packages. Then runs the checks of
    installed packages, loads every backend (or only the given NAMEs), calls every hook, and makes calls
    between two processes over each backend. The exit status is 1 if something is broken.
    """
    from rpc_backends_cli.report import render, render_verdict, summary

    if as_json:
        with stdout_for_json():
            report = summary(gather(names, timeout, calls, lambda _: None))
        print_json(report)
    else:
        to = console()
        sections = []
        with to.status("") as spinner:
            for section in gather(names, timeout, calls, spinner.update):
                render(section, to)
                sections.append(section)
        report = summary(sections)
        render_verdict(report, to)
    click.get_current_context().exit(0 if report["ok"] else 1)
