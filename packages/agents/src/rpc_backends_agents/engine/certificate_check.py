"""What ``rpc-backends doctor`` says of the certificates of workers on this host."""

from __future__ import annotations

from typing import Any

from rpc_backends_agents.engine import identities
from rpc_backends_agents.engine.certificates import Files, Identity, date
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_cli import Finding
from rpc_backends_core.spi import SettingError

#: Names of workers that a finding lists.
_MOST_NAMES = 20
_STATEMENT = b"rpc-backends doctor"


def check(paths: Files, native: Any, *, fips: bool = False) -> list[Finding]:
    """Return a finding for each certificate that workers of this host would use.

    Each is read with its key and its authority, signs something, and is verified as a peer does it:
    chain, dates, use, and signature.

    :param paths: those of the options or variables.
    :param native: the extension of the engine.
    :param fips: whether to use OpenSSL's FIPS provider only.
    """
    if not paths.depends_on_name:
        return [_finding(paths, native, None, fips=fips)]
    names = paths.names_here()
    if not names:
        text = (
            f"no file here fits {paths.certificate}, in which {{name}} stands for a worker's name, "
            "so no worker could start on this host"
        )
        return [Finding("problem", "certificate", text, {"certificate": paths.certificate})]
    findings = [_finding(paths.of(name), native, name, fips=fips) for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        text = f"{len(names) - _MOST_NAMES} more fit {paths.certificate}; they were not looked at"
        findings.append(Finding("note", "certificate", text))
    return findings


def _finding(paths: Files, native: Any, name: str | None, *, fips: bool) -> Finding:
    """Return what is to say of one certificate. `name`: of the worker, if the path says it."""
    try:
        identity = Identity(paths, native, fips=fips)
        mine = identity.certificates
        own = identities.own_name(mine.identity)
        identity.verify(*identity.sign(_STATEMENT), _STATEMENT)
    except (SettingError, PublicationError) as error:
        where = "" if isinstance(error, SettingError) else f"{paths.certificate}: "
        text = f"a worker would not get in with it: {where}{error}"
        return Finding("problem", "certificate", text, {"certificate": paths.certificate})
    data: dict[str, object] = {
        "certificate": paths.certificate,
        "identity": mine.identity,
        "serial": mine.serial,
        "expires": mine.expires,
        "name": own,
    }
    text = (
        f"{mine.identity}, number {mine.serial}, from {paths.certificate}, until {date(mine.expires)}; "
        f"it is for the worker {own!r}"
    )
    if name is not None and name != own:
        text += (
            f", and the file is that of {name!r}: that worker would not start, unless a guard policy "
            "gives it this name"
        )
        return Finding("warning", "certificate", text, data)
    return Finding("ok", "certificate", text, data)
