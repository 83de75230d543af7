"""Parse the requests to torch's TCP store far enough to find where each ends (as of torch 2.13)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_LENGTH, _NUMBER, _SHORT = struct.Struct("<Q"), 8, 4
#: By the first byte of a request: its name, and the fields that follow. ``t`` is a text or value after
#: its length, ``n`` a number of 8 bytes, ``s`` a number of 4 bytes, ``T`` a count and that many texts.
_REQUESTS = {
    0: ("validate", "s"),
    1: ("set", "tt"),
    2: ("compare_set", "ttt"),
    3: ("get", "t"),
    4: ("add", "tn"),
    5: ("check", "T"),
    6: ("wait", "T"),
    7: ("number_of_keys", ""),
    8: ("delete", "t"),
    9: ("append", "tt"),
    10: ("multi_get", "T"),
    12: ("cancel_wait", ""),
    13: ("ping", "s"),
}


class UnknownRequestError(RuntimeError):
    """A request to the store is of an unknown kind, so its end is unknown."""


class Incomplete(Exception):  # noqa: N818 - no error, and never leaves this module
    """The rest of a request has not arrived yet."""


class Parser:
    """Splits the bytes from one client into requests."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield the names of the requests that ``data`` completes.

        :raises UnknownRequestError: a request begins with an unknown byte.
        """
        self._buffer += data
        while self._buffer:
            try:
                name, fields = _REQUESTS[self._buffer[0]]
            except KeyError:
                raise UnknownRequestError(
                    f"a request to the store begins with byte {self._buffer[0]}, which is not in "
                    "store_protocol.py. This version of torch has another protocol: extend the table."
                ) from None
            try:
                end = self._end(fields)
            except Incomplete:
                return
            del self._buffer[:end]
            yield name

    def _end(self, fields: str) -> int:
        at = 1
        for field in fields:
            if field == "s":
                at += _SHORT
            elif field == "n":
                at += _NUMBER
            else:
                count = 1
                if field == "T":
                    count, at = self._length(at)
                for _ in range(count):
                    length, at = self._length(at)
                    at += length
        if at > len(self._buffer):
            raise Incomplete
        return at

    def _length(self, at: int) -> tuple[int, int]:
        if at + _LENGTH.size > len(self._buffer):
            raise Incomplete
        return _LENGTH.unpack_from(self._buffer, at)[0], at + _LENGTH.size
