"""doctor's check of installed packages by their metadata: requirements, entry-point groups.

It imports none of the packages.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

from rpc_backends_cli.report import Finding, Section
from rpc_backends_core.spi import inspection

_GROUPS = (
    inspection.BACKENDS_GROUP,
    inspection.HOOKS_GROUP,
    inspection.COMMANDS_GROUP,
    inspection.CHECKS_GROUP,
)
#: Packages without entry points that backends build on.
_OURS = "rpc-backend"


def check() -> Section:
    """Return the packages whose requirements are not met, and misspelt entry-point groups."""
    import importlib_metadata

    misspelt = [
        Finding(
            "problem",
            found.distribution or found.name,
            f"{found.origin} {inspection.misspelt_group_text(group, found)}",
            {"group": group, "name": found.name, "distribution": found.distribution},
        )
        for group, found in inspection.misspelt_groups()
    ]
    names = {
        _canonical(found.distribution) for group in _GROUPS for found in inspection.declared(group)
    }
    unmet: list[Finding] = []
    count = 0
    for distribution in importlib_metadata.distributions():
        name = distribution.metadata["Name"] if distribution.metadata is not None else None
        if not isinstance(name, str):
            continue
        if _canonical(name) in names or _canonical(name).startswith(_OURS):
            count += 1
            unmet += _unmet(distribution)
    findings = sorted([*unmet, *misspelt], key=lambda one: (one.about, one.text))
    if not unmet:
        findings.insert(0, Finding("ok", "requirements", f"those of {count} packages are met"))
    return Section("requirements", "Installed packages", findings)


def _canonical(name: str | None) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name or "")


def _unmet(distribution: Any) -> Iterator[Finding]:
    """Yield a problem for each requirement of a distribution that is not met."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    name = distribution.metadata["Name"]
    origin = f"{name} {distribution.metadata['Version'] or ''}".strip()

    def problem(text: str, wanted: str) -> Finding:
        return Finding("problem", name, f"{origin} {text}", {"requirement": wanted})

    python = distribution.metadata["Requires-Python"]
    if python:
        here = platform.python_version()
        try:
            fits = SpecifierSet(python).contains(here, prereleases=True)
        except InvalidSpecifier:
            yield problem(_invalid("Requires-Python", python), python)
        else:
            if not fits:
                yield problem(
                    f"requires Python {python}, and this is Python {here}. Install a version of the "
                    f"package for this Python: pip install --upgrade {name}",
                    python,
                )
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield problem(_invalid("requirement", text), text)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            here = (
                "it is not installed"
                if found is None
                else f"{requirement.name} {found} is installed"
            )
            wanted = f"{requirement.name}{requirement.specifier}"
            yield problem(
                f"requires {wanted}, and {here}. Install it: pip install '{wanted}'", wanted
            )


def _invalid(what: str, text: str) -> str:
    return f"has an invalid {what}, {text!r}. Its author must correct its metadata."


def _version(name: str) -> str | None:
    import importlib_metadata

    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return None
