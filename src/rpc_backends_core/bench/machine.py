"""Where and when it was measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

#: Share of the cores that may be busy with other programs before a run counts as disturbed.
_BUSY = 0.5


def describe(distributions: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return this machine as it is now, with the versions of ``distributions`` that are installed."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "rpc-backends-core", *distributions):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "started": now(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def finished() -> dict[str, Any]:
    """Return what is known of the machine at the end only; its load is for the greater part ours."""
    return {"ended": now(), "load_after": round(os.getloadavg()[0], 2)}


def is_busy(machine: dict[str, Any]) -> bool:
    """Return whether other programs ran when the measurement began."""
    return bool(machine["load_before"] > _BUSY * machine["cores"])


#: What a reader has to know of a run on a busy machine.
BUSY = (
    "Other programs ran when this began. Backends that look for messages all the time (TensorPipe) lose "
    "more by that than those that wait: neither times nor ratios are those of an idle machine."
)


def now() -> str:
    """Return the time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def in_words(machine: dict[str, Any]) -> str:
    """Return a line about the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = f"load {machine['load_before']:.1f} before"
    if "load_after" in machine:
        loads += f", {machine['load_after']:.1f} after"
    gigabytes = machine["memory"] / 2**30
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {gigabytes:.0f} GiB, {machine['system']}; "
        f"{versions}; {machine['started'][:10]}; {loads}"
    )


def cpu_model() -> str:
    """Return the name of the processor, as Linux has it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
