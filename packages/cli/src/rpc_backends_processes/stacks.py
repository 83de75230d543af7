"""Parses the stacks that faulthandler writes."""

from __future__ import annotations

import re
from typing import NamedTuple

_HEAD = re.compile(
    r"(?:Thread|Current thread) 0x([0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
#: The first line of what faulthandler writes at a crash, or when it is asked for stacks.
_BEGIN = re.compile(r"^(Fatal Python error: |(Current thread|Thread) 0x)", re.MULTILINE)


class Place(NamedTuple):
    """One frame of a Python stack: the file, the line and the function."""

    file: str
    line: int
    function: str


def split(text: str) -> tuple[str, str]:
    """Split a process's output into what precedes faulthandler's first line, and the rest."""
    begin = _BEGIN.search(text)
    return (text[: begin.start()], text[begin.start() :]) if begin else (text, "")


def parse(text: str) -> list[tuple[int, list[Place]]]:
    """Return each thread's number and frames, the innermost first. The main thread is the last one."""
    threads: list[tuple[int, list[Place]]] = []
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            threads.append((int(head[1], 16), []))
        elif threads and (frame := _FRAME.fullmatch(line)):
            threads[-1][1].append(Place(frame[1], int(frame[2]), frame[3]))
    return threads
