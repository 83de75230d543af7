"""Running doctor checks of installed packages, each in its own process in case it hangs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rpc_backends_cli.installed import UnusableError, remedy, run_check
from rpc_backends_cli.report import Finding, Section, limit_note
from rpc_backends_core.spi import inspection
from rpc_backends_processes import WorkerContext, isolation

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record


def check(taken: Collection[str], limit: float, status: Callable[[str], None]) -> Iterator[Section]:
    """Yield one section for each check of an installed package.

    :param taken: keys of doctor's own sections.
    :param limit: time limit of one check in seconds.
    """
    keys = set(taken)
    for number, record in enumerate(inspection.declared(inspection.CHECKS_GROUP)):
        status(f"running the check of {record.origin}")
        key = record.name if record.name not in keys else f"{record.name} of {record.origin}"
        keys.add(key)
        yield _section(key, number, record, limit)


def _section(key: str, number: int, record: Record, limit: float) -> Section:
    (outcome,) = isolation.run(_look, [(number,)], limit)
    text, section = outcome.result or (None, None)
    if section is not None and outcome.error is None:
        findings = [Finding(**finding) for finding in section["findings"]]
        return Section(key, section["title"], findings)
    if text is None:
        note = limit_note(limit, timed_out=outcome.timed_out)
        text = f"{record.value} of {record.origin}: {outcome.error}{note}\n{remedy(record)}"
    return Section(key, record.name, [Finding("problem", "not checked", text)])


def _look(_me: WorkerContext, number: int) -> tuple[str | None, dict[str, Any] | None]:
    """Run check ``number``; return an error message or the section as data."""
    record = inspection.declared(inspection.CHECKS_GROUP)[number]
    try:
        section = run_check(record)
    except UnusableError as error:
        return str(error), None
    # Values that JSON cannot represent are sent as text, as they are printed.
    return None, json.loads(json.dumps(asdict(section), default=str))
