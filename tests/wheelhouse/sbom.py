"""The bill of materials of a wheel, in the wheel (PEP 770), as CycloneDX 1.6.

It names the distribution, and the software of others whose code is in the wheel. What pip installs
beside the wheel has its own. auditwheel adds a second one to a wheel that it copies libraries into.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import uuid
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

#: Ids of bills are made from this and from the content, so that two builds of one commit are equal.
_NAMESPACE = uuid.UUID("5b1d8f3e-6d0c-4f5b-9a53-0d6f3f0f2c11")


@dataclass(frozen=True)
class Component:
    """Software of others whose code is in a wheel.

    :ivar license: its SPDX identifier.
    :ivar origin: where its name is from, as a package URL says it.
    """

    name: str
    version: str
    license: str
    origin: str = "pypi"

    def entry(self) -> dict[str, object]:
        """Return the entry in a bill of materials."""
        return {
            "type": "library",
            "name": self.name,
            "version": self.version,
            "purl": f"pkg:{self.origin}/{self.name}@{self.version}",
            "licenses": [{"license": {"id": self.license}}],
        }


def add(wheel: Path, inside: Iterable[Component]) -> None:
    """Write the bill of materials into a wheel; one that is there is replaced.

    :param inside: the software of others whose code is in the wheel.
    """
    with zipfile.ZipFile(wheel) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    (record,) = (info for info, _ in entries if info.filename.endswith(".dist-info/RECORD"))
    folder = record.filename.removesuffix("/RECORD")
    metadata = next(data for info, data in entries if info.filename == f"{folder}/METADATA")
    project = HeaderParser().parsestr(metadata.decode())
    name, version = project["Name"], project["Version"]
    path = f"{folder}/sboms/{name}.cdx.json"
    content = _bill(Component(name, version, project["License-Expression"]), inside)
    rewritten = wheel.with_suffix(".new")
    with zipfile.ZipFile(rewritten, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in entries:
            if info.filename not in (path, record.filename):
                # Two builds are equal, whatever umask the sources were unpacked with.
                info.external_attr &= ~(0o022 << 16)
                archive.writestr(info, data, zipfile.ZIP_DEFLATED)
        bill = zipfile.ZipInfo(path, record.date_time)
        bill.external_attr = record.external_attr
        archive.writestr(bill, content, zipfile.ZIP_DEFLATED)
        lines = next(data for info, data in entries if info is record).decode()
        archive.writestr(record, _record(lines, path, content), zipfile.ZIP_DEFLATED)
    rewritten.replace(wheel)


def _bill(product: Component, inside: Iterable[Component]) -> bytes:
    bill: dict[str, object] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product.entry()},
        "components": [component.entry() for component in inside],
    }
    text = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, text)}"
    return json.dumps(bill, indent=2, sort_keys=True).encode() + b"\n"


def _record(text: str, path: str, content: bytes) -> str:
    rows = [row for row in csv.reader(io.StringIO(text)) if row and row[0] != path]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    rows.insert(-1, [path, f"sha256={digest}", str(len(content))])  # the last row is RECORD itself
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()
