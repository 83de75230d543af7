"""The program that runs in each process of `discovery.py` and measures one first scan.

It is run isolated (``python -I -S``) with one argument, a JSON object with the keys:

- ``situation`` and ``side``: which function of `PROGRAMS` to run;
- ``folders``: folders to append to ``sys.path``;
- ``before``: modules to import before the measurement;
- ``ours``: our modules that `ours` imports before the measurement;
- ``clock``: ``cpu`` or ``wall``.

A fork of a process with these modules would start faster, but the measurement would include the copying
of memory pages: the first write to each page costs a microsecond or more.
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

#: Seconds by the name of the figure, and the names of the backends that were found.
Result = tuple[dict[str, float], list[str]]

FIRST, WITH_IMPORTS = "first scan", "first scan, with imports"
REFRESH, AGAIN = "refresh", "repeated"
OURS, REFERENCE, STDLIB = "ours", "importlib_metadata", "importlib.metadata"

#: How often a repeatable call is measured in one process.
_REPEATS = 5


def ours() -> Result:
    """Measure our scan, with all modules imported before."""
    import importlib_metadata  # noqa: F401

    import rpc_backends_core

    for name in _settings["ours"]:
        importlib.import_module(name)
    times = {
        FIRST: _timed(rpc_backends_core.records),
        AGAIN: _repeated(rpc_backends_core.records),
        REFRESH: _repeated(rpc_backends_core.refresh),
    }
    return times, [record.name for record in rpc_backends_core.records()]


def reference() -> Result:
    """Measure the same as `ours` with importlib_metadata alone."""
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
    """Measure a scan with importlib.metadata, imported before."""
    import importlib.metadata

    times = {FIRST: _timed(importlib.metadata.entry_points)}
    return times, _names(importlib.metadata.entry_points())


def ours_with_imports() -> Result:
    """Measure the imports and our scan."""
    begin = _clock()
    import rpc_backends_core

    records = rpc_backends_core.records()
    return {WITH_IMPORTS: _clock() - begin}, [record.name for record in records]


def reference_with_imports() -> Result:
    """Measure the same as `ours_with_imports` with importlib_metadata alone."""
    begin = _clock()
    import importlib_metadata

    points = importlib_metadata.entry_points()
    return {WITH_IMPORTS: _clock() - begin}, _names(points)


def stdlib_with_imports() -> Result:
    """Measure the same as `ours_with_imports` with the standard library alone."""
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
    """Run the function that the argument names; print its result as JSON."""
    _settings.update(json.loads(sys.argv[1]))
    sys.path += _settings["folders"]
    for name in _settings["before"]:
        importlib.import_module(name)
    # Otherwise the number of new objects would decide which measurement has a garbage collection in it.
    gc.collect()
    gc.freeze()
    times, names = PROGRAMS[_settings["situation"]][_settings["side"]]()
    print(json.dumps([times, sorted(names)]))


if __name__ == "__main__":
    main()
