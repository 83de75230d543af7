"""What installed packages have doctor look at: each in a child, so that one which hangs stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from rpc_backends_cli import children
from rpc_backends_cli.installed import remedy
from rpc_backends_cli.report import Finding, Section
from rpc_backends_core.spi import inspection as discovery

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record


def check(taken: Collection[str], limit: float, status: Callable[[str], None]) -> Iterator[Section]:
    """Yield a section for each check of an installed package.

    :param taken: keys of doctor's own sections.
    :param limit: seconds for one of them.
    """
    keys = set(taken)
    for number, found in enumerate(discovery.declared(discovery.CHECKS_GROUP)):
        status(f"looking at what {found.origin} looks at")
        key = found.name if found.name not in keys else f"{found.name} of {found.origin}"
        keys.add(key)
        yield _section(key, number, found, limit)


def _section(key: str, number: int, found: Record, limit: float) -> Section:
    (outcome,) = children.run(f"{__package__}.check_worker", [{"number": number}], limit)
    section = outcome.fact("section")
    if section is not None and outcome.error is None:
        findings = [Finding(**finding) for finding in section["findings"]]
        return Section(key, section["title"], findings)
    text = outcome.fact("unusable")
    if text is None:
        text = f"{found.value} of {found.origin}: {outcome.error}\n"
        if outcome.timed_out:
            text += f"The limit was {limit:g} s; --timeout sets another.\n"
        text += remedy(found)
    return Section(key, found.name, [Finding("problem", "not looked at", text)])
