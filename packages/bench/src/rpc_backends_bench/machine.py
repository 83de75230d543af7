"""Where and when it was measured."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds in which it is looked whether others run.
_LOOKING_SECONDS = 0.5


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
        "stolen_before": _processors().stolen,
    }


def finished() -> dict[str, Any]:
    """Return what is known of the machine at the end only."""
    return {"ended": now(), "stolen_after": _processors().stolen}


def busy_share() -> float:
    """Look for half a second; return the share of the cores' time that went to other programs."""
    before = _processors()
    time.sleep(_LOOKING_SECONDS)
    after = _processors()
    used, idle, stolen = (there - here for there, here in zip(after, before, strict=True))
    everything = used + idle + stolen
    return round((used + stolen) / everything, 3) if everything else 0.0


def stolen_share(machine: dict[str, Any]) -> float:
    """Return in which share of the run a virtual machine stood still; 0 where that is not known."""
    if "stolen_after" not in machine:
        return 0.0
    begin, end = (datetime.fromisoformat(machine[when]) for when in ("started", "ended"))
    seconds = max(1.0, (end - begin).total_seconds())
    return float((machine["stolen_after"] - machine["stolen_before"]) / seconds)


def now() -> str:
    """Return the time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def in_words(machine: dict[str, Any]) -> str:
    """Return a line about the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    how = ""
    if "busy_before" in machine:
        how = f"; {machine['busy_before']:.0%} busy before, {stolen_share(machine):.1%} stolen"
    if machine.get("awake"):
        how += ", cores kept awake"
    gigabytes = machine["memory"] / 2**30
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {gigabytes:.0f} GiB, {machine['system']}; "
        f"{versions}; {machine['started'][:10]}{how}"
    )


class _Processors(NamedTuple):
    """What a core has done since the machine was started, in seconds, on average of all cores."""

    used: float = 0.0
    idle: float = 0.0
    stolen: float = 0.0


def _processors() -> _Processors:
    """Return the account that Linux keeps (proc(5), /proc/stat); zeros elsewhere."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return _Processors()
    ticks = os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    user, nice, system, idle, waiting, *interrupts, stolen = (
        int(one) / ticks for one in first[1:9]
    )
    return _Processors(sum((user, nice, system, *interrupts)), idle + waiting, stolen)


def cpu_model() -> str:
    """Return the name of the processor, as Linux has it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
