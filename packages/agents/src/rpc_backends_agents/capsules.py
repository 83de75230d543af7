"""The error for a C++ transport or interceptor that does not fit this agent."""

from __future__ import annotations

import re

#: A capsule's name: the interface, its version, and what earlier versions said of std::string.
_NAME = re.compile(r"(.+)\.(\d+)(?:\.old-strings)?")


def mismatch(giver: object, method: str, what: str, given: object, wanted: str) -> str:
    """Return an error message that says which package to upgrade.

    :param giver: the Python object that gives the capsule.
    :param method: its method that does so.
    :param what: ``transport`` or ``interceptor``.
    :param given: the name of the capsule, or the object that is no capsule.
    :param wanted: the name that this agent needs.
    """
    kind = type(giver)
    head = f"the {what} {kind.__module__}.{kind.__qualname__}"
    theirs = _NAME.fullmatch(given) if isinstance(given, str) else None
    ours = _NAME.fullmatch(wanted)
    assert ours is not None, wanted
    if theirs is None or theirs[1] != ours[1]:
        return (
            f"{head} cannot be used: its {method}() returned {given!r}; it must return a capsule named "
            f"{wanted!r}. Fix the package that provides it."
        )
    built = (
        f"{head} was built for version {theirs[2]} of the {what} interface, and the installed "
        f"rpc-backends-agents has version {ours[2]}. "
    )
    if int(theirs[2]) > int(ours[2]):
        return f"{built}Upgrade the agents: pip install --upgrade rpc-backends-agents"
    package = _distribution(kind.__module__)
    return (
        f"{built}Upgrade the package that provides it: pip install --upgrade {package}. If you compile "
        f"it yourself, compile it again with the headers of this version."
    )


def _distribution(module: str) -> str:
    """Return the name in pip of the package that has a module."""
    from importlib.metadata import packages_distributions

    distributions = packages_distributions().get(module.partition(".")[0])
    return distributions[0] if distributions else "PACKAGE"
