"""Trying every plugin: each is loaded in a child, so that one which hangs or crashes stops nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rpc_backends_cli import children
from rpc_backends_cli.load_worker import hook_id
from rpc_backends_cli.output import origin
from rpc_backends_cli.report import Finding, Section, seconds

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record

Item = tuple[str, str]  # ("backend" or "hook", name)


@dataclass(frozen=True)
class Loaded:
    """How loading one package went.

    :ivar failure: why it failed, None if it did not.
    :ivar said: whether ``failure`` is the registry's own text, which has the package and the remedy.
    """

    seconds: float | None
    failure: str | None
    said: bool = True


def load_all(items: Iterable[Item], limit: float) -> dict[Item, Loaded]:
    """Load each of ``items``; ``limit`` has the seconds for one of them."""
    left, results = list(items), dict[Item, Loaded]()
    while left:
        spec = {"items": left, "limit": limit}
        (outcome,) = children.run(f"{__package__}.load_worker", [spec], limit * (len(left) + 1))
        for facts in outcome.said:
            if "done" in facts:
                kind, name = facts["done"]
                results[kind, name] = Loaded(facts["seconds"], facts["failure"])
        left = [item for item in left if item not in results]
        if left:
            # The one that it was at took the process with it; the rest is tried in a new one.
            kind, name = outcome.fact("trying") or left[0]
            culprit = (kind, name) if (kind, name) in left else left[0]
            failure = outcome.error or "the process ended silently"
            if outcome.timed_out:
                failure += f"\nThe limit was {limit:g} s; --timeout sets another."
            results[culprit] = Loaded(None, failure, said=False)
            left.remove(culprit)
    return results


def check(records: list[Record], found_hooks: list[Record], limit: float) -> list[Section]:
    """Return every backend and every hook package, and how loading it went."""
    tried = [record for record in records if record.state == "found"]
    items = [("backend", record.name) for record in tried]
    items += dict.fromkeys(("hook", hook_id(found)) for found in found_hooks)
    results = load_all(items, limit)
    backends = [_backend(record, results.get(("backend", record.name))) for record in records]
    # Packages that claim one name have one error between them.
    backends = list({(one.about, one.text): one for one in backends}.values())
    hooks = [_hook(found, results["hook", hook_id(found)]) for found in found_hooks]
    sections = [Section("backends", "Backends, and the time to load them", backends)]
    return [*sections, Section("hooks", "Hook packages", hooks)] if hooks else sections


def _backend(record: Record, loaded: Loaded | None) -> Finding:
    where = origin(record)
    data: dict[str, object] = {
        "state": record.state,
        "source": record.source,
        "distribution": record.distribution,
        "version": record.version,
        "value": record.value,
        "error": None if record.error is None else str(record.error),
    }
    if record.state == "shadowed":
        return Finding("note", record.name, f"{where}, not used: it is shadowed", data)
    if record.error is not None:
        level = "note" if record.state == "denied" else "problem"
        return Finding(level, record.name, str(record.error), data)  # type: ignore[arg-type]
    if record.state != "found" or loaded is None:
        return Finding("ok", record.name, where, data)
    data |= {
        "state": "failed" if loaded.failure else "loaded",
        "error": loaded.failure,
        "load_seconds": loaded.seconds,
    }
    if loaded.failure is None:
        return Finding("ok", record.name, f"{where} ({seconds(loaded.seconds or 0)})", data)
    text = loaded.failure
    if not loaded.said:
        text = data["error"] = (
            f"RPC backend {record.name!r} of {where} cannot be used: loading {record.value}: {text}\n"
            f"Mend or reinstall the package, or uninstall it: pip uninstall {record.distribution}."
        )
    return Finding("problem", record.name, text, data)


def _hook(found: Record, loaded: Loaded) -> Finding:
    data = {
        "distribution": found.distribution,
        "version": found.version,
        "value": found.value,
        "error": loaded.failure,
        "load_seconds": loaded.seconds,
    }
    if loaded.failure is None:
        return Finding("ok", found.name, f"{found.origin}, takes part", data)
    return Finding(
        "problem",
        found.name,
        f"{found.origin} is left out: loading {found.value}: {loaded.failure}\nMend it, or uninstall "
        f"it: pip uninstall {found.distribution}.",
        data,
    )
