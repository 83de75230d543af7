"""What runs in each process of `discovery`: one program, which measures one first scan.

Run it isolated (``python -I -S``) with one argument, a JSON object: ``situation`` and ``side`` say which
program; ``folders`` is the end of sys.path; ``before`` are the modules that are imported before anything
is measured; ``ours`` are those that `ours` needs of our own; ``clock`` is ``cpu`` or ``wall``.

To fork from a process that has all this imported would be quicker, and would measure how pages are
copied: each one that is touched for the first time costs a microsecond or more.
"""

from __future__ import annotations

import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

#: Seconds by what was measured, and the backends that were found.
Result = tuple[dict[str, float], list[str]]

FIRST, WITH_IMPORTS = "first scan", "first scan, with imports"
REFRESH, AGAIN = "refresh", "asked again"
OURS, REFERENCE, STDLIB = "ours", "importlib_metadata", "importlib.metadata"

#: How often something is repeated in one process where it can be.
_REPEATS = 5


def ours() -> Result:
    """Scan with the modules imported."""
    import importlib_metadata  # noqa: F401

    import rpc_backends_core

    for name in _settings["ours"]:
        importlib.import_module(name)
    times = {
        FIRST: _timed(rpc_backends_core.records),
        AGAIN: _repeated(rpc_backends_core.records),
        REFRESH: _repeated(rpc_backends_core.refresh),
    }
    return times, [one.name for one in rpc_backends_core.records()]


def reference() -> Result:
    """Do what `ours` does by importlib_metadata alone."""
    import importlib_metadata

    def refresh() -> None:
        importlib.invalidate_caches()
        importlib_metadata.entry_points()

    times = {
        FIRST: _timed(importlib_metadata.entry_points),
        AGAIN: _repeated(importlib_metadata.entry_points),
        REFRESH: _repeated(refresh),
    }
    return times, _names(importlib_metadata.entry_points())


def stdlib() -> Result:
    """Scan with the standard library's module imported."""
    import importlib.metadata

    times = {FIRST: _timed(importlib.metadata.entry_points)}
    return times, _names(importlib.metadata.entry_points())


def ours_with_imports() -> Result:
    """Import what is needed, and scan."""
    begin = _clock()
    import rpc_backends_core

    records = rpc_backends_core.records()
    return {WITH_IMPORTS: _clock() - begin}, [record.name for record in records]


def reference_with_imports() -> Result:
    """Do what `ours_with_imports` does by importlib_metadata alone."""
    begin = _clock()
    import importlib_metadata

    points = importlib_metadata.entry_points()
    return {WITH_IMPORTS: _clock() - begin}, _names(points)


def stdlib_with_imports() -> Result:
    """Do what `ours_with_imports` does by the standard library alone."""
    begin = _clock()
    import importlib.metadata

    points = importlib.metadata.entry_points()
    return {WITH_IMPORTS: _clock() - begin}, _names(points)


def _names(points: Any) -> list[str]:
    return [point.name for point in points.select(group="rpc.backends")]


def _timed(call: Callable[[], Any]) -> float:
    begin = _clock()
    call()
    return _clock() - begin


def _repeated(call: Callable[[], Any]) -> float:
    return statistics.median([_timed(call) for _ in range(_REPEATS)])


def _clock() -> float:
    return time.process_time() if _settings["clock"] == "cpu" else time.perf_counter()


_settings: dict[str, Any] = {}

#: The programs whose times are compared, by situation and side.
PROGRAMS: dict[str, dict[str, Callable[[], Result]]] = {
    FIRST: {OURS: ours, REFERENCE: reference, STDLIB: stdlib},
    WITH_IMPORTS: {
        OURS: ours_with_imports,
        REFERENCE: reference_with_imports,
        STDLIB: stdlib_with_imports,
    },
}


def main() -> None:
    """Run the program that the argument names; print its result as JSON."""
    _settings.update(json.loads(sys.argv[1]))
    sys.path += _settings["folders"]
    for name in _settings["before"]:
        importlib.import_module(name)
    # Or else it depends on how many young objects there are who pays for collecting them.
    gc.collect()
    gc.freeze()
    times, found = PROGRAMS[_settings["situation"]][_settings["side"]]()
    print(json.dumps([times, sorted(found)]))


if __name__ == "__main__":
    main()
