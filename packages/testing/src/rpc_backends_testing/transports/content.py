"""The messages that tests send, and a description of how received messages differ."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

#: Sizes of parts just below, at and above each power of two, where buffers, headers and packets end.
SIZES = sorted(
    {0, 1, 2, 3}
    | {size + step for power in range(3, 22) for size in (1 << power,) for step in (-1, 0, 1)}
)
#: Numbers of parts. One system call takes up to 1024 buffers.
COUNTS = (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4097)

#: A message of this many bytes is large: it may arrive later than messages that are sent after it.
LARGE = 64 << 10

Parts = list[bytes]


def message(seed: object, sizes: Iterable[int]) -> Parts:
    """Return parts of these sizes; their bytes differ from part to part, and from seed to seed."""
    return [random.Random(f"{seed}/{place}").randbytes(size) for place, size in enumerate(sizes)]


def is_large(parts: Sequence[bytes]) -> bool:
    """Return whether later messages may overtake this one."""
    return sum(map(len, parts)) >= LARGE


def shown(parts: Sequence[bytes]) -> str:
    """Return a description of a message: the number of its parts, and their sizes."""
    sizes = [len(part) for part in parts]
    if not sizes:
        return "[] (no parts)"
    if len(sizes) > 8:
        more = f"... {len(sizes)} parts, {sum(sizes)} bytes"
        return f"[{', '.join(map(str, sizes[:4]))}, {more}]"
    return f"[{', '.join(f'{size} B' for size in sizes)}]"


def difference(sent: Sequence[bytes], got: Sequence[bytes]) -> str | None:
    """Return how the received parts differ from the sent ones, as text; None if they are equal."""
    if list(sent) == list(got):
        return None
    if sorted(sent) == sorted(got):
        return f"{shown(got)}: the same parts in another order"
    if b"".join(sent) == b"".join(got):
        return f"{shown(got)}: the same bytes, but divided into other parts"
    if [len(part) for part in sent] != [len(part) for part in got]:
        return shown(got)
    place = next(
        i
        for i, (sent_byte, got_byte) in enumerate(zip(sent, got, strict=True))
        if sent_byte != got_byte
    )
    pairs = enumerate(zip(sent[place], got[place], strict=True))
    first = next(i for i, (sent_byte, got_byte) in pairs if sent_byte != got_byte)
    wrong = sum(
        sent_byte != got_byte for sent_byte, got_byte in zip(sent[place], got[place], strict=True)
    )
    return f"{shown(got)}: in part {place}, {wrong} bytes differ, the first at {first}"
