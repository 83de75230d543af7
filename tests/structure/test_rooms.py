"""The rooms of the agents' C++ include each other in one direction, as the architecture page says."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from structure.imports import ROOT

CSRC = ROOT / "packages/agents/csrc"
PUBLIC = ROOT / "packages/agents/src/rpc_backends_agents/include"
PAGE = ROOT / "docs/explanation/architecture.md"
#: No rooms, so no room is open to them: headers in place of some of torch's, with torch's paths, and
#: the headers for other packages.
OUTSIDE = {"narrow": CSRC / "narrow", "include": PUBLIC}
TORCH = {"torch", "ATen", "c10"}
PYTHON = {"pybind11", "Python.h"}

_INCLUDE = re.compile(r'#include (?:"([^"]+)"|<([^>]+)>)')
_OTHER = re.compile(
    r"\s*#\s*(if|ifdef|ifndef|elif|else|endif|define|undef|pragma|error)\b(?!.*include)"
)
_DIRECTIVE = re.compile(
    r"\s*(#|%:|\?\?=)|.*(#|%:|\?\?=).*(include|import|embed)|\s*(export\s+)?import\s*[\w:<\"]"
)


def read_includes(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what a file includes, and whether it is in quotes.

    :raises ValueError: there is a directive that is written in any other way.
    """
    for line in text.replace("\\\n", "").splitlines():
        if include := _INCLUDE.fullmatch(line):
            yield include[1] or include[2], bool(include[1])
        elif _DIRECTIVE.match(line) and not _OTHER.match(line):
            raise ValueError(line)


@cache
def rooms() -> dict[str, set[str]]:
    """Return the rooms that each room may include, in the order of the table on the page."""
    table = PAGE.read_text().partition("| room | includes |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


@cache
def sources() -> dict[Path, str]:
    """Return the room of each file."""
    files = {path: path.relative_to(CSRC).parts[0] for path in CSRC.rglob("*") if path.is_file()}
    return files | {path: "include" for path in PUBLIC.rglob("*") if path.is_file()}


def problems(room: str, text: str) -> Iterator[str]:
    """Yield what a file of a room includes against the rules."""
    try:
        includes = list(read_includes(text))
    except ValueError as error:
        yield f"cannot read {error}"
        return
    for name, quoted in includes:
        first = name.partition("/")[0]
        ours = next((place for place in (CSRC, PUBLIC) if (place / name).is_file()), None)
        if name != posixpath.normpath(name) or first in ("", ".."):
            yield f"{name} is not the path from the folder of the rooms"
        elif quoted != bool(ours):
            yield f"{name}: files of this project are in quotes, with their room, and no others"
        elif ours == CSRC and first != room and first not in rooms().get(room, ()):
            yield f"{room} may not include {name}"
        elif room == "include" and first in TORCH:
            yield f"{name}: a transport is compiled without torch"


def test_every_file_is_in_a_room_of_the_page() -> None:
    assert set(sources().values()) == {*rooms(), *OUTSIDE}
    assert {file.suffix for file in sources()} == {".cpp", ".h"}


def test_a_room_may_include_only_rooms_above_it_on_the_page() -> None:
    above: set[str] = set()
    for room, allowed in rooms().items():
        assert allowed <= above, f"{room} may include {', '.join(sorted(allowed - above))}"
        above.add(room)


def test_no_file_includes_what_its_room_may_not() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {problem}"
        for file, room in sources().items()
        for problem in problems(room, file.read_text())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        *('#include "agent/core.h"', "#include <agent/core.h>", '#include "base/../agent/core.h"'),
        *('#include "./agent/core.h"', '#include "../agent/core.h"', '#include "text.h"'),
        *('#import "agent/core.h"', '#include_next "agent/core.h"', '%:include "agent/core.h"'),
        *('#include /* core */ "agent/core.h"', '/**/ #include "agent/core.h"', "#include CORE"),
        *('#inc\\\nlude "agent/core.h"', '??=include "agent/core.h"', '#include"agent/core.h"'),
        *(f'#include "{CSRC}/agent/core.h"', f"#include <{CSRC}/agent/core.h>", "import <vector>;"),
    ],
)
@pytest.mark.parametrize("room", ["base", "narrow", "include"])
def test_an_upward_include_is_found(room: str, line: str) -> None:
    assert list(problems(room, f"#pragma once\n\n{line}\n"))


def test_public_headers_do_not_need_torch() -> None:
    assert list(problems("include", "#include <ATen/ATen.h>"))


def outside(file: Path) -> set[str]:
    """Return the first parts of all that a file includes of other projects, directly or not."""
    reached, waiting, others = set[Path](), [file], set[str]()
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for name, quoted in read_includes(path.read_text()):
            if quoted:
                waiting += [place / name for place in (CSRC, PUBLIC) if (place / name).is_file()]
            else:
                others.add(name.partition("/")[0])
    return others


def test_base_needs_neither_torch_nor_python() -> None:
    wrong = {
        file.name: needed
        for file, room in sources().items()
        if room == "base" and (needed := outside(file) & (TORCH | PYTHON))
    }
    assert not wrong


def test_what_a_file_reaches_through_others_counts() -> None:
    assert "pybind11" in outside(PUBLIC / "rpc_backends_agents/python.h")
    assert "Python.h" in outside(CSRC / "python/python_state.cpp")


def test_every_include_that_the_page_allows_is_used() -> None:
    """Otherwise the page shows more dependencies than there are."""
    used = {
        (room, name.partition("/")[0])
        for file, room in sources().items()
        for name, _ in read_includes(file.read_text())
    }
    unused = [
        f"{room} does not include {below}"
        for room, allowed in rooms().items()
        for below in sorted(allowed)
        if (room, below) not in used
    ]
    assert not unused, "\n".join(unused)
