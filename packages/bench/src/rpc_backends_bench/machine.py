"""Describe the machine of a run: hardware, versions, and how busy it was."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

#: How long :func:`busy_share` observes the machine, in seconds.
_SAMPLE_S = 0.5


def describe(distributions: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return facts about this machine, and the versions of the ``distributions`` that are installed."""
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
    """Return the facts about the machine that are known only at the end of a run."""
    return {"ended": now(), "stolen_after": _processors().stolen}


def busy_share() -> float:
    """Return the share of the cores' time, in the next half second, that other programs take."""
    before = _processors()
    time.sleep(_SAMPLE_S)
    after = _processors()
    used, idle, stolen = (there - here for there, here in zip(after, before, strict=True))
    everything = used + idle + stolen
    return round((used + stolen) / everything, 3) if everything else 0.0


def stolen_share(machine: dict[str, Any]) -> float:
    """Return the share of the run in which the host stopped this virtual machine; 0 if unknown."""
    if "stolen_after" not in machine:
        return 0.0
    begin, end = (datetime.fromisoformat(machine[when]) for when in ("started", "ended"))
    seconds = max(1.0, (end - begin).total_seconds())
    return float((machine["stolen_after"] - machine["stolen_before"]) / seconds)


def now() -> str:
    """Return the current time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def summary(machine: dict[str, Any]) -> str:
    """Return one line that describes the machine."""
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
    """How the cores spent their time since the machine started, in seconds, the mean of all cores."""

    used: float = 0.0
    idle: float = 0.0
    stolen: float = 0.0


def _processors() -> _Processors:
    """Return the times in Linux's ``/proc/stat`` (see proc(5)); zeros on other systems."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return _Processors()
    ticks = os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    user, nice, system, idle, waiting, *interrupts, stolen = (
        int(ticks_in_state) / ticks for ticks_in_state in first[1:9]
    )
    return _Processors(sum((user, nice, system, *interrupts)), idle + waiting, stolen)


def cpu_model() -> str:
    """Return the model name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
