"""The rooms of the agents' C++ include each other in one direction, as the architecture page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from structure.imports import ROOT

CSRC = ROOT / "packages/agents/csrc"
PAGE = ROOT / "docs/explanation/architecture.md"
#: Not a room: short headers in place of some of torch's, which keep torch's paths.
NARROW = "narrow"


def room_of(file: Path) -> str:
    return file.relative_to(CSRC).parts[0]


@cache
def sources() -> list[Path]:
    """Return the files of all rooms."""
    files = (file for file in CSRC.rglob("*.*") if file.parent != CSRC and room_of(file) != NARROW)
    return sorted(file for file in files if file.suffix in (".h", ".cpp"))


@cache
def rooms() -> dict[str, set[str]]:
    """Return the rooms that each room may include, in the order of the table on the page."""
    table = PAGE.read_text().partition("| room | includes |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


def includes() -> Iterator[tuple[Path, str]]:
    """Yield each file with each path that it includes in quotes."""
    for file in sources():
        for path in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE):
            yield file, path


def arrows() -> Iterator[tuple[Path, str, str]]:
    """Yield each include of another room: the file, the path that it includes, and the path's room."""
    for file, path in includes():
        room = path.partition("/")[0]
        if room in rooms() and room != room_of(file):
            yield file, path, room


def test_the_page_lists_every_room() -> None:
    assert {room_of(file) for file in sources()} == set(rooms())


def test_a_room_may_include_only_rooms_above_it_on_the_page() -> None:
    above: set[str] = set()
    for room, allowed in rooms().items():
        assert allowed <= above, f"{room} may include {', '.join(sorted(allowed - above))}"
        above.add(room)


def test_no_file_includes_a_room_that_its_own_may_not() -> None:
    wrong = [
        f"{file.relative_to(CSRC)} includes {path}"
        for file, path, room in arrows()
        if room not in rooms()[room_of(file)]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_include_that_the_page_allows_is_used() -> None:
    """Otherwise the page shows more dependencies than there are."""
    used = {(room_of(file), room) for file, _, room in arrows()}
    unused = [
        f"{room} does not include {below}"
        for room, allowed in rooms().items()
        for below in sorted(allowed)
        if (room, below) not in used
    ]
    assert not unused, "\n".join(unused)


def test_includes_name_the_room() -> None:
    wrong = [
        f"{file.relative_to(CSRC)} includes {path}"
        for file, path in includes()
        if not path.startswith("rpc_backends_agents/") and not (CSRC / path).is_file()
    ]
    assert not wrong, "\n".join(wrong)
