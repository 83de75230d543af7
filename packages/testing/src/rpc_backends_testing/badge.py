"""The badge of a report, for a README: as SVG, or as JSON for https://shields.io/badges/endpoint-badge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from rpc_backends_testing.results import Report

#: The suffixes of the formats of a badge.
SUFFIXES = (".svg", ".json")

_LABEL = "rpc-backends"
_COLOURS = {
    "conforms": "#2e7d32",
    "conforms with exclusions": "#55761a",
    "partial": "#8a6100",
    "does not conform": "#b71c1c",
}
#: For a backend that conforms where it was tested, and was not tested everywhere.
_QUALIFIED = "#4b6a2b"
#: In pixels: the average width of a letter at 11 pixels, the margin around a text, and the height.
_LETTER, _MARGIN, _HEIGHT = 6.3, 7, 20


def write(report: Report, file: Path) -> Path:
    """Write the badge of a report to a file whose suffix is one of `SUFFIXES`; return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = svg(report) if file.suffix == ".svg" else endpoint(report)
    file.write_text(text, encoding="utf-8")
    return file


def message(report: Report) -> str:
    """Return the text of a badge: the verdict and the version of the suite that counts."""
    return f"{report.verdict} (suite {report.counted_version})"


def endpoint(report: Report) -> str:
    """Return the badge as JSON that shields.io draws."""
    badge = {
        "schemaVersion": 1,
        "label": _LABEL,
        "message": message(report),
        "color": _colour(report).removeprefix("#"),
    }
    return json.dumps(badge, indent=2) + "\n"


def svg(report: Report) -> str:
    """Return the badge as a picture."""
    left, right = (_width(text) for text in (_LABEL, message(report)))
    total, text = left + right, escape(f"{_LABEL}: {message(report)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" role="img" '
        f'aria-label="{text}">\n'
        f"<title>{text}</title>\n"
        f'<clipPath id="round"><rect width="{total}" height="{_HEIGHT}" rx="3"/></clipPath>\n'
        '<g clip-path="url(#round)">\n'
        f'<rect width="{left}" height="{_HEIGHT}" fill="#444"/>\n'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{_colour(report)}"/>\n'
        '</g>\n<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" '
        'font-size="11">\n'
        f"{_text(_LABEL, 0, left)}{_text(message(report), left, right)}</g>\n</svg>\n"
    )


def _colour(report: Report) -> str:
    return _QUALIFIED if report.is_qualified else _COLOURS[report.conclusion]


def _width(text: str) -> int:
    return round(len(text) * _LETTER) + 2 * _MARGIN


def _text(text: str, start: int, width: int) -> str:
    # With a length, the text fits in any font.
    return (
        f'<text x="{start + width / 2:g}" y="14" textLength="{width - 2 * _MARGIN}">'
        f"{escape(text)}</text>\n"
    )
