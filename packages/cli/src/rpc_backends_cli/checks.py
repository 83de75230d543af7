"""The checks that doctor runs in its own process: versions, bridge, environment variables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata

from rpc_backends_cli.report import Finding, Level, Section
from rpc_backends_cli.torch_state import bridge, import_torch
from rpc_backends_core import __version__
from rpc_backends_core.spi import SPI_VERSION, RpcBackendsError, inspection
from rpc_backends_core.spi.inspection import settings

_DEPENDENCIES = ("pluggy", "importlib-metadata", "click", "rich")


def versions() -> Section:
    """Return the versions of Python, torch and this project; imports torch."""
    interface = ".".join(map(str, SPI_VERSION))
    findings = [
        Finding("ok", "Python", f"{platform.python_version()}, {sys.executable}"),
        Finding("ok", "system", platform.platform()),
        Finding("ok", "rpc-backends-core", f"{__version__}, interface {interface}"),
    ]
    failure = import_torch()
    if failure is None:
        import torch

        build = "" if has_tensorpipe() else ", built without TensorPipe"
        findings.append(Finding("ok", "torch", f"{torch.__version__}{build}"))
    else:
        findings.append(Finding("problem", "torch", f"it cannot be imported: {failure}"))
    findings.append(
        Finding("ok", "libraries", ", ".join(f"{n} {metadata.version(n)}" for n in _DEPENDENCIES))
    )
    return Section("versions", "Versions", findings)


def has_tensorpipe() -> bool:
    """Return whether torch was built with TensorPipe, or without RPC; imports torch."""
    from torch.distributed import rpc

    return not rpc.is_available() or hasattr(rpc, "TensorPipeAgent")


def torch_bridge() -> Section:
    """Return whether the bridge is installed, and which of torch's private names are missing."""
    from rpc_backends_core.spi import torch_internals

    state = bridge()
    level = {"in place": "ok", "off": "note", "absent": "problem", "failed": "problem"}[state.state]
    findings = [Finding(level, state.state, state.text)]  # type: ignore[arg-type]
    if state.state != "absent":
        findings += [
            Finding(
                "warning",
                "private name",
                f"this torch has no {name.path} ({name.use}): {name.without}",
                name._asdict(),
            )
            for name in torch_internals.missing()
        ]
    return Section("bridge", "Bridge to torch", findings)


def variables(environ: Mapping[str, str] = os.environ) -> Section:
    """Return the ``RPC_BACKENDS_...`` variables that are set, and whether their values are valid."""
    findings = [
        _variable(name, environ) for name in settings.VARIABLES if environ.get(name, "").strip()
    ]
    declared = [
        record
        for group in (inspection.BACKENDS_GROUP, inspection.HOOKS_GROUP)
        for record in inspection.declared(group)
    ]
    declarations = inspection.declared(inspection.VARIABLES_GROUP)
    for variable in inspection.other_variables(declared, environ, declarations):
        problem = variable.problem
        if problem is None and variable.owner is None:
            problem = "is not read by any package of this project"
        # Without its value, which may be a secret.
        text = f"is set, for {variable.owner}" if problem is None else problem
        level: Level = "ok" if problem is None else "warning"
        findings.append(Finding(level, variable.name, text, asdict(variable)))
    if not findings:
        findings.append(Finding("ok", "RPC_BACKENDS_*", "none is set"))
    return Section("variables", "Environment variables", findings)


def _variable(name: str, environ: Mapping[str, str]) -> Finding:
    value = environ[name]
    try:
        _PARSERS[name](environ)
    except RpcBackendsError as error:
        text = str(error) if name in str(error) else f"{value!r}: {error}"
        return Finding("problem", name, text, {"value": value})
    meaning = settings.VARIABLES[name]
    return Finding("ok", name, f"{value!r}: {meaning}", {"value": value})


def _default(environ: Mapping[str, str]) -> None:
    _check_name(settings.value(settings.DEFAULT, environ))


def _override(environ: Mapping[str, str]) -> None:
    _check_name(settings.value(settings.OVERRIDE, environ))


def _check_name(name: str | None) -> None:
    """Check that the named backend exists."""
    from rpc_backends_core.spi.inspection import default_registry

    if name is not None:
        default_registry().find(name)


def _choice(environ: Mapping[str, str]) -> None:
    from rpc_backends_core.spi.inspection import default_registry

    settings.Choice(environ)
    default_registry().names()  # compares the names with those there are


def _lock(environ: Mapping[str, str]) -> None:
    from rpc_backends_core.spi.inspection import default_registry

    default_registry().names()  # compares the lock with what is installed


_PARSERS: dict[str, Callable[[Mapping[str, str]], object]] = {
    settings.AUTOLOAD: settings.autoload_enabled,
    settings.DEFAULT: _default,
    settings.OVERRIDE: _override,
    settings.ALLOW: _choice,
    settings.DENY: _choice,
    settings.LOCK: _lock,
    settings.JOIN_TIMEOUT: settings.join_timeout,
    settings.UNPICKLING_ERRORS: settings.returns_unpickling_errors,
    settings.REQUIRE_AUTH: settings.requires_authentication,
}
