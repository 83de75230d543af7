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

    damaged = [
        Finding(
            "problem",
            declaration.distribution or declaration.name,
            f"{declaration.origin} {inspection.misspelt_group_text(group, declaration)}",
            {"group": group, "name": declaration.name, "distribution": declaration.distribution},
        )
        for group, declaration in inspection.misspelt_groups()
    ]
    damaged += [
        Finding(
            "problem",
            damage.distribution or "a package",
            str(damage),
            {"distribution": damage.distribution},
        )
        for damage in inspection.unreadable()
    ]
    names = {
        _canonical(entry_point.distribution)
        for group in _GROUPS
        for entry_point in inspection.declared(group)
    }
    unmet: list[Finding] = []
    checked: set[str] = set()
    for distribution in importlib_metadata.distributions():
        name = _canonical(_field(distribution, "Name"))
        # Of two copies of a package on the path, Python uses the first.
        if name not in checked and (name in names or name.startswith(_OURS)):
            checked.add(name)
            unmet += _unmet(distribution)
    findings = sorted([*unmet, *damaged], key=lambda finding: (finding.about, finding.text))
    if not unmet:
        findings.insert(
            0, Finding("ok", "requirements", f"those of {len(checked)} packages are met")
        )
    return Section("requirements", "Installed packages", findings)


def _field(distribution: Any, name: str) -> str:
    """Return a field of a distribution's metadata; empty if it has none or cannot be read."""
    return (_fields(distribution, name) or [""])[0]


def _fields(distribution: Any, name: str) -> list[str]:
    """Return all values of a field of a distribution's metadata."""
    try:
        return list(map(str, distribution.metadata.get_all(name) or ()))
    except (AttributeError, UnicodeDecodeError, FileNotFoundError):
        return []


def _canonical(name: str | None) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name or "")


def _unmet(distribution: Any) -> Iterator[Finding]:
    """Yield a problem for each requirement of a distribution that is not met."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    name = _field(distribution, "Name")
    origin = f"{name} {_field(distribution, 'Version')}".strip()

    def problem(text: str, wanted: str) -> Finding:
        return Finding("problem", name, f"{origin} {text}", {"requirement": wanted})

    python = _field(distribution, "Requires-Python")
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
    for text in _fields(distribution, "Requires-Dist"):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield problem(_invalid("requirement", text), text)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            here = (
                "it is not installed"
                if version is None
                else f"{requirement.name} {version} is installed"
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
    except (KeyError, FileNotFoundError, importlib_metadata.PackageNotFoundError):
        return None
