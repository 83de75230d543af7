"""Format figures for tables and axes, with units that suit their size."""

from __future__ import annotations

from rpc_backends_bench.plan import DYNAMIC, Row
from rpc_backends_bench.results import Results
from rpc_backends_bench.statistics import Ratio

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_RATES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s"))
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def seconds(value: float) -> str:
    """Return a time with three digits and its unit."""
    size, unit = next((step for step in _TIMES if abs(value) >= step[0]), _TIMES[-1])
    return (
        f"{value / size:.3g} {unit}" if abs(value) < 1000 * size else f"{value / size:.0f} {unit}"
    )


def amount(value: float) -> str:
    """Return a number of bytes with three digits and its unit."""
    size, unit = next((step for step in _BYTES if abs(value) >= step[0]), _BYTES[-1])
    shown = f"{value / size:.3g}" if abs(value) < 1000 * size else f"{value / size:.0f}"
    return f"{shown} {unit}"


def rate(value: float) -> str:
    """Return bytes per second with three digits and their unit."""
    size, unit = next((step for step in _RATES if value >= step[0]), _RATES[-1])
    return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:.0f} {unit}"


def figure(row: Row, value: float) -> str:
    """Return a value of a row with the row's unit."""
    if row.unit == "s":
        return seconds(value)
    if row.unit == "B":
        return amount(value)
    if row.unit == "1/s":
        return f"{value:,.0f} /s"
    return f"{value:.3g} cores" if row.unit == "core" else f"{value:.1f}"


def bandwidth(row: Row, time: float, length: int) -> float:
    """Return the bytes moved per second; an echo moves ``length`` bytes twice."""
    return (2 if row.id == "size.echo" else 1) * length / time


def row_label(row: Row, x: int | None) -> str:
    """Return the title of a row, with the value ``x`` of what the row depends on."""
    if x is None:
        return row.title
    return f"{row.title}, {amount(x)}" if row.along == "bytes" else f"{row.title}: {x}"


def ratio(value: Ratio | None, *, interval: bool = True, digits: int = 2) -> str:
    """Return a ratio as text, with its interval or without; empty for None."""
    if value is None:
        return ""
    low, middle, high = (f"{bound:.{digits}f}" for bound in value[:3])
    return f"{middle} ({low} - {high})" if interval else middle


def verdict(row: Row, value: Ratio | None) -> str:
    """Return ``better`` or ``worse`` if that is true of the whole interval, else an empty string."""
    if value is None or value.low <= 1 <= value.high:
        return ""
    return "better" if (value.low > 1) == row.higher_is_better else "worse"


def shown_x_values(results: Results, row: Row) -> list[int | None]:
    """Return the values of x that a table shows: powers of two for joins, else all."""
    x_values = results.x_values(row.id)
    if row.id not in DYNAMIC:
        return x_values
    return [x for x in x_values if x is not None and x & (x - 1) == 0]
