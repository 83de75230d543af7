"""Render the results as one HTML file that needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from rpc_backends_bench import formatting, machine
from rpc_backends_bench.compare import Comparison
from rpc_backends_bench.disturbances import disturbances
from rpc_backends_bench.plan import Row
from rpc_backends_bench.plots import Picture
from rpc_backends_bench.results import BASELINE, Results
from rpc_backends_bench.statistics import spread
from rpc_backends_bench.table import describe_change

_TEMPLATES = Path(__file__).parent / "templates"
_TONES = {"better": "good", "worse": "bad", "": ""}


def render(results: Results, comparison: Comparison | None, pictures: Sequence[Picture]) -> str:
    """Return the HTML page of ``results``."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    others = [label for label in results.labels if label != results.reference]
    return environment.get_template("bench.html.j2").render(
        results=results,
        others=others,
        pictures=[(picture.plot, _embedded(picture)) for picture in pictures],
        sections=_sections(results),
        machine=machine.summary(results.machine),
        disturbances=disturbances(results),
        comparison=comparison,
        describe_change=describe_change,
        tones=_TONES,
    )


def _embedded(picture: Picture) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(picture.svg).decode()


def _sections(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Return the table lines under each heading."""
    sections: dict[str, list[dict[str, Any]]] = {}
    for row in results.rows():
        for x in formatting.shown_x_values(results, row):
            sections.setdefault(row.section, []).append(_line(results, row, x))
    return sections


def _line(results: Results, row: Row, x: int | None) -> dict[str, Any]:
    cells = []
    for label in results.labels:
        series = results.of(row.id, x, label)
        cell: dict[str, Any] = {"value": "", "detail": "", "ratio": None, "tone": ""}
        if series is not None:
            of_values = spread(series.values)
            cell["value"] = formatting.figure(row, of_values.middle)
            cell["detail"] = _detail(row, series.percentiles) or (
                f"{formatting.figure(row, of_values.low)} - {formatting.figure(row, of_values.high)}"
            )
            if row.along == "bytes" and x is not None:
                rate = formatting.rate(formatting.bandwidth(row, of_values.middle, x))
                cell["detail"] = f"{rate} · {cell['detail']}"
        if label != results.reference:
            ratio = results.ratio(row.id, x, label)
            cell["ratio"] = formatting.ratio(ratio)
            cell["tone"] = _TONES[formatting.verdict(row, ratio)]
        cells.append(cell)
    points = []
    for baseline in row.baselines:
        series = results.of(row.id, x, f"{BASELINE}{baseline}")
        if series is not None:
            name = "bare socket" if baseline == "socket" else "memory copy"
            name += ", 64 B" if x is None else ""
            points.append(f"{name}: {formatting.figure(row, spread(series.values).middle)}")
    return {"name": formatting.row_label(row, x), "id": row.id, "cells": cells, "baselines": points}


def _detail(row: Row, percentiles: dict[str, float]) -> str:
    shown = [
        f"{percent} %: {formatting.figure(row, value)}".replace(" ", "\N{NO-BREAK SPACE}")
        for percent, value in percentiles.items()
        if percent != "50"
    ]
    return " · ".join(shown)
