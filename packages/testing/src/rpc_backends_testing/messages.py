"""Descriptions of messages, and Hypothesis strategies for them.

Each worker makes the same message of a description. The description travels with the message, so that
the callee knows what has to arrive. The storages of a message have different contents: if two of them
are exchanged or merged on the way, a test notices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

#: Sizes in bytes at which a backend may change how it sends a storage, the pickled part, or both.
THRESHOLDS = (64, 1024, 4096, 8192, 65536, 262144)
#: How many elements of a list an error shows.
_SHOWN = 8
#: From this size on torch copies a small view of a storage before it sends it.
_COPIED_FROM = 8192
DTYPES = ("uint8", "int16", "bfloat16", "float32", "int64", "complex64")


@dataclass(frozen=True)
class Storage:
    """A storage: its size in bytes, the dtype of its tensors, and the number that makes its contents."""

    size: int
    dtype: str
    number: int


@dataclass(frozen=True)
class View:
    """A tensor: the index of its storage, and its offset, shape and strides there, in elements."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Blob:
    """Bytes outside all tensors: they travel in the pickled part of a message."""

    size: int
    number: int


class Place(NamedTuple):
    """Where a tensor is.

    :ivar storage: the number of its storage, counted by first appearance.
    :ivar distance: bytes from the first tensor of that storage.
    """

    storage: int
    distance: int


@dataclass(frozen=True)
class Message:
    """A message: its storages, and a value of lists, tuples and dicts with views and blobs in it."""

    storages: tuple[Storage, ...]
    value: Any

    def build(self) -> Any:
        """Return the value, with tensors in new storages."""
        memory = [contents(storage) for storage in self.storages]
        return _build(self.value, memory)

    def sharing(self) -> list[Place | None]:
        """Return what :func:`sharing` must return for the value that has arrived."""
        return _sharing(
            (view.storage, view.offset * _itemsize(self.storages[view.storage].dtype))
            if kept
            else None
            for view, kept in zip(self._views(), self.keeps_sharing(), strict=True)
        )

    def keeps_sharing(self) -> list[bool]:
        """Return for each tensor whether it has to share memory where it arrives.

        Torch copies a view of at most half of a storage of 8 KiB or more, so that the rest of the
        storage is not sent. Tensors without elements have no memory to share.
        """
        shared = []
        for view in self._views():
            storage = self.storages[view.storage]
            size = math.prod(view.shape) * _itemsize(storage.dtype)
            copied = storage.size >= _COPIED_FROM and storage.size >= 2 * size
            shared.append(size > 0 and not copied)
        return shared

    def _views(self) -> list[View]:
        return [leaf for leaf in leaves(self.value) if isinstance(leaf, View)]

    def __str__(self) -> str:
        """Return the message in words, for an error."""
        return _show(self.value, self.storages)


def contents(storage: Storage) -> torch.Tensor:
    """Return the elements of a storage: words that differ from those of every other storage."""
    words = torch.arange(-(-storage.size // 4), dtype=torch.int32)
    words.mul_(-1640531535).add_(storage.number * 0x1000193 + 7)
    return words.view(torch.uint8)[: storage.size].clone().view(getattr(torch, storage.dtype))


def blob(written: Blob) -> bytes:
    """Return the bytes of a blob."""
    return bytes(contents(Storage(written.size, "uint8", written.number)).numpy())


def leaves(value: Any) -> Iterator[Any]:
    """Yield what is in the lists, tuples and dicts of a value, in order."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    else:
        yield value


def sharing(value: Any, which: Sequence[bool]) -> list[Place | None]:
    """Return how the tensors of a value share memory.

    :param which: for each tensor, whether to look at it.
    :returns: for each tensor a `Place`; None for one not looked at.
    """
    tensors = [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
    return _sharing(
        (tensor.untyped_storage().data_ptr(), tensor.data_ptr()) if looked_at else None
        for tensor, looked_at in zip(tensors, which, strict=True)
    )


def _sharing(addresses: Iterable[tuple[int, int] | None]) -> list[Place | None]:
    first: dict[int, Place] = {}
    places: list[Place | None] = []
    for address_of_tensor in addresses:
        if address_of_tensor is None:
            places.append(None)
            continue
        storage, address = address_of_tensor
        number, begin = first.setdefault(storage, Place(len(first), address))
        places.append(Place(number, address - begin))
    return places


def _build(value: Any, memory: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, View):
        return memory[value.storage].as_strided(value.shape, value.strides, value.offset)
    if isinstance(value, Blob):
        return blob(value)
    if isinstance(value, list | tuple):
        return type(value)(_build(part, memory) for part in value)
    if isinstance(value, dict):
        return {key: _build(part, memory) for key, part in value.items()}
    return value


def _itemsize(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def _show(value: Any, storages: Sequence[Storage]) -> str:
    if isinstance(value, View):
        storage = storages[value.storage]
        place = f"at {value.offset} of storage {value.storage} ({storage.size} bytes)"
        return f"<{storage.dtype}, shape {value.shape}, strides {value.strides}, {place}>"
    if isinstance(value, Blob):
        return f"<{value.size} bytes>"
    if isinstance(value, dict):
        shown = ", ".join(f"{key!r}: {_show(part, storages)}" for key, part in value.items())
        return f"{{{shown}}}"
    if isinstance(value, list | tuple):
        shown = ", ".join(_show(part, storages) for part in value[:_SHOWN])
        if len(value) > _SHOWN:
            shown += f", and {len(value) - _SHOWN} more"
        ends = "[]" if isinstance(value, list) else "()"
        return f"{ends[0]}{shown}{ends[1]}"
    return repr(value)


# --- strategies ----------------------------------------------------------------------------------

_around = [size + more for size in THRESHOLDS for more in (-1, 0, 1)]
#: Small sizes first: Hypothesis makes a failing example smaller by taking earlier alternatives.
_sizes = st.one_of(st.integers(0, 40), st.integers(0, 20000), st.sampled_from(_around))
_blobs = st.builds(Blob, st.one_of(st.integers(0, 40), st.sampled_from(_around[:9])), st.just(99))
_scalars = st.one_of(st.none(), st.integers(-9, 9), st.sampled_from([1.5, "text", True]))


class _Slot(int):
    """The place in a value for a view, by its number."""


_nesting = st.recursive(
    st.one_of(_scalars, _blobs, st.builds(_Slot, st.integers(0, 3))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from([0, 1, "a", None]), inner, max_size=3),
    ),
    max_leaves=6,
)


def _view(draw: st.DrawFn, index: int, storage: Storage) -> View:
    """Draw a view of a storage: all of it, a part, with steps, transposed, expanded, or empty."""
    count = storage.size // _itemsize(storage.dtype)
    kind = draw(_kinds)
    begin = draw(st.integers(0, count)) if kind in ("part", "steps", "expanded") else 0
    left = count - begin
    if kind == "part":
        return View(index, begin, (draw(st.integers(0, left)),), (1,))
    if kind == "steps":
        return View(index, begin, (-(-left // 3),), (3,))
    if kind == "transposed":
        rows = draw(st.integers(1, 7))
        return View(index, 0, (count // rows, rows), (1, max(1, count // rows)))
    if kind == "expanded":
        return View(index, begin, (2, min(left, 5)), (0, 1))
    if kind == "empty":
        return View(index, 0, (0, 3), (3, 1))
    return _whole(index, storage)


_kinds = st.sampled_from(["all", "part", "steps", "transposed", "expanded", "empty"])


def _whole(index: int, storage: Storage) -> View:
    return View(index, 0, (storage.size // _itemsize(storage.dtype),), (1,))


def _storages(draw: st.DrawFn, first: int) -> tuple[Storage, ...]:
    """Draw the storages of a message: a few of any sizes, or many of one size."""
    if draw(_one_in_six) == 0:
        # Some backends put small storages together, up to a limit: 64 times 4 KiB, for example.
        many, size = draw(_many), draw(_for_many)
        return tuple(Storage(size, "uint8", first + index) for index in range(many))
    # Few sizes and dtypes, so that many parts have the same size: a backend may exchange such parts
    # without noticing it.
    few_sizes, few_dtypes = draw(_few_sizes), draw(_few_dtypes)
    storages = []
    for index in range(draw(_count)):
        dtype, size = draw(st.sampled_from(few_dtypes)), draw(st.sampled_from(few_sizes))
        storages.append(Storage(size - size % _itemsize(dtype), dtype, first + index))
    return tuple(storages)


_one_in_six = st.sampled_from([1, 2, 3, 4, 5, 0])
_many = st.sampled_from([12, 64, 65, 130])
_for_many = st.sampled_from([1025, 4095, 4096, 4097, 5000])
_few_sizes = st.lists(_sizes, min_size=1, max_size=2)
_count = st.integers(0, 6)
_few_dtypes = st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2)


@st.composite
def messages(draw: st.DrawFn, first: int = 0) -> Message:
    """Give any message.

    Each storage has a tensor that is all of it. Others share memory with it or overlap.

    :param first: the number of its first storage.
    """
    storages = _storages(draw, first)
    whole = [_whole(index, storage) for index, storage in enumerate(storages)]
    nesting = draw(_nesting)
    views: list[View] = []
    if storages:
        for _ in range(len([leaf for leaf in leaves(nesting) if isinstance(leaf, _Slot)])):
            index = draw(st.integers(0, len(storages) - 1))
            views.append(_view(draw, index, storages[index]))
    value = [*whole, _fill(nesting, views)]
    if 1 < len(value) < 9:
        value = draw(st.permutations(value))
    return Message(storages, value)


def _fill(value: Any, views: list[View]) -> Any:
    """Put views into the slots of a value, in order."""
    if isinstance(value, _Slot):
        return views.pop(0) if views else None
    if isinstance(value, list | tuple):
        return type(value)(_fill(part, views) for part in value)
    if isinstance(value, dict):
        return {key: _fill(part, views) for key, part in value.items()}
    return value


@st.composite
def groups_of_messages(draw: st.DrawFn) -> list[Message]:
    """Give messages to be sent at the same time; no two have a storage of the same contents."""
    return [draw(messages(1000 * index)) for index in range(draw(st.integers(1, 6)))]


@st.composite
def lists_of_bytes(draw: st.DrawFn) -> Message:
    """Give a message that is a list of one or more tensors of bytes, each all of its storage."""
    of_bytes = [Storage(storage.size, "uint8", storage.number) for storage in _storages(draw, 0)]
    storages = tuple(of_bytes or [Storage(0, "uint8", 0)])
    return Message(storages, [_whole(index, data) for index, data in enumerate(storages)])
