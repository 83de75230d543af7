"""Requirements that a backend's author excludes, each with a reason (`Backend.excluded_requirements`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from rpc_backends_testing import manifest

#: The chapter whose requirements are torch's tests; the published list does not have them.
_TORCH = "torch."


def reason_to_exclude(requirement: str, excluded: Mapping[str, str]) -> str | None:
    """Return why a requirement is excluded, None if it is not.

    :param requirement: its id; one with parameters, as ``data.dtype[int8]``, is also excluded by the id
        without them.
    """
    return excluded.get(requirement, excluded.get(requirement.partition("[")[0]))


def check_exclusions(backend: str, excluded: Mapping[str, str], collected: Iterable[str]) -> None:
    """Check that the requirements which a backend excludes exist.

    :param collected: the ids of the requirements in this run, which may be an author's own.
    :raises ValueError: there is no such requirement; the text has the nearest names.
    """
    if not excluded:
        return
    ids = {*manifest.requirements(), *collected}
    known = ids | {name.partition("[")[0] for name in ids}
    for requirement in excluded:
        if requirement in known or requirement.startswith(_TORCH):
            continue
        near = difflib.get_close_matches(requirement, sorted(known), n=3)
        hint = (
            f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else ("requirements.json in rpc_backends_testing/chapters lists them.")
        )
        raise ValueError(
            f"{backend} excludes {requirement!r}, which is no requirement of the suite. {hint}"
        )
