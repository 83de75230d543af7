"""The answers that all workers of a group read: the members, and what they have exchanged.

An answer is one value in the store, which the first writer decides. Torch's store refuses values of more
than 8 MiB, so a longer answer is shared out over several keys, and the value names them.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from rpc_backends_core._errors import GroupError, GroupTimeoutError
from rpc_backends_core._group.contents import MOST_BYTES, parsed, unsuitable

#: Bytes of the longest value that is written, and of each piece of a longer answer.
_LONGEST_VALUE = 4 << 20
#: Keys in one request. torch's TCP store parses a request from its start each time that a part of it
#: arrives, so 15,000 keys have taken it 20 s.
_MOST_KEYS = 1000
#: How the value of an answer in pieces begins; no other answer does.
_IN_PIECES = b'{"pieces": '
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ReplacedGroupError(GroupError):
    """A worker of the group was started again while the others started; they join the next group."""


def get_all(store: Any, keys: list[str]) -> list[bytes]:
    """Return the values of ``keys``, in few requests if the store supports it."""
    if store.has_extended_api():
        return [value for part in _batches(keys) for value in store.multi_get(part)]
    return [store.get(key) for key in keys]


def has_all(store: Any, keys: list[str]) -> bool:
    """Return whether all ``keys`` have values."""
    return all(store.check(part) for part in _batches(keys))


def settle(store: Any, key: str, answer: Any) -> None:
    """Write ``answer`` (JSON) under ``key`` unless the key already has a value."""
    text = json.dumps(answer)  # ASCII, so each character is a byte
    if len(text) > _LONGEST_VALUE:
        digest = hashlib.sha256(text.encode()).hexdigest()
        pieces = range(0, len(text), _LONGEST_VALUE)
        # Before the value that names them. Workers that write different answers use different keys.
        for piece, begin in zip(_piece_keys(key, digest, len(pieces)), pieces, strict=True):
            store.set(piece, text[begin : begin + _LONGEST_VALUE])
        text = json.dumps({"pieces": len(pieces), "digest": digest})
    store.compare_set(key, "", text)


def whole_answer(store: Any, key: str, text: bytes, workers: int) -> bytes:
    """Return the answer whose value under ``key`` is ``text``, with its pieces if it has any.

    :raises StoreError: the pieces are not those of the answer.
    """
    if not text.startswith(_IN_PIECES):
        return text
    count, digest = parsed(key, text, lambda value: _pieces(value, workers))
    keys = _piece_keys(key, digest, count)
    if not store.check(keys):
        raise unsuitable(key, f"an answer in {count} pieces, of which some are missing,")
    whole = b"".join(get_all(store, keys))
    if hashlib.sha256(whole).hexdigest() != digest:
        raise unsuitable(key, f"an answer in {count} pieces that do not belong to it,")
    return whole


def read_answer(key: str, text: bytes, workers: int) -> dict[str, Any]:
    """Return the answer that :func:`settle` wrote, for a group of ``workers``.

    :param text: the whole answer; see :func:`whole_answer`.
    :raises GroupError: the answer is an error.
    :raises StoreError: the value is not a valid answer.
    """
    answer: dict[str, Any] = parsed(key, text, lambda fields: {**fields}, _most_bytes(workers))
    if "error" in answer:
        raise group_error(answer)
    return answer


def group_error(answer: dict[str, Any]) -> Exception:
    """Return the error in ``answer``, as the exception type that its sender chose."""
    kinds: dict[str, type[Exception]] = {
        "GroupTimeoutError": GroupTimeoutError,
        "ReplacedGroupError": ReplacedGroupError,
        "ValueError": ValueError,
    }
    return kinds.get(str(answer.get("kind")), GroupError)(str(answer["error"]))


def _batches(keys: list[str]) -> list[list[str]]:
    return [keys[begin : begin + _MOST_KEYS] for begin in range(0, len(keys), _MOST_KEYS)]


def _most_bytes(workers: int) -> int:
    return MOST_BYTES * (workers + 1)


def _piece_keys(key: str, digest: str, count: int) -> list[str]:
    return [f"{key}/{digest}/{number}" for number in range(count)]


def _pieces(value: Any, workers: int) -> tuple[int, str]:
    count, digest = value["pieces"], value["digest"]
    if type(count) is not int or not 1 < count <= _most_bytes(workers) // _LONGEST_VALUE + 1:
        raise ValueError(f"it is in {count} pieces")
    if type(digest) is not str or not _DIGEST.fullmatch(digest):
        raise ValueError("its digest is not valid")
    return count, digest
