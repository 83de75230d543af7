"""The ports on which a worker may listen: one port or a range, so that firewalls can allow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_HIGHEST = 65535


@dataclass(frozen=True)
class Ports:
    """The ports from ``first`` to ``last``."""

    first: int
    last: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def parse(text: str) -> Ports | None:
    """Parse ``text`` ("5000" or "5000-5100"); return None if it is malformed."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    if not _is_port(first) or not _is_port(last if dash else first):
        return None
    ports = Ports(int(first), int(last if dash else first))
    return ports if ports.first <= ports.last else None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= _HIGHEST
